"""What a generation returns."""

from __future__ import annotations

from attrs import frozen

from specforge.tree import DraftTree

STAGES = ("prefill", "draft", "build", "verify", "commit")


@frozen(eq=False)
class RoundRecord:
    """One round of a traced generation.

    Attributes:
        tree: the verified tree.
        path: the accepted nodes, the root (0) included.
        token_ids: the tokens the round emitted: the accepted drafts and the next root, cut at a stop.
        stage_seconds: seconds by stage of this round.
    """

    tree: DraftTree
    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    stage_seconds: dict[str, float]

    @property
    def acceptance_length(self) -> int:
        """Tokens that the round emitted, the next root included."""
        return len(self.token_ids)


@frozen(eq=False)
class GenerationResult:
    """The outcome of ``Pipeline.generate``.

    Attributes:
        token_ids: the new tokens only, the stop token included.
        text: their text, special tokens left out; ``None`` when the target has no tokenizer.
        acceptance_lengths: tokens emitted by each round. The first token comes from the prefill and belongs to no
            round, so ``len(token_ids) == 1 + sum(acceptance_lengths)``.
        rounds: every round's tree and accepted path, with ``trace=True``; else empty.
        stage_seconds: seconds by stage: prefill, draft, build, verify, commit.
        seconds_to_first_token: from the call to the first token.
        decode_seconds: from the first token to the last.
        prompt_tokens: length of the prompt in tokens.
        finish_reason: ``"stop_token"``, ``"stop_string"``, ``"stopping_criteria"`` (of ``model.generate``),
            ``"max_new_tokens"`` or ``"context"``.
    """

    token_ids: list[int]
    text: str | None
    acceptance_lengths: list[int]
    rounds: list[RoundRecord]
    stage_seconds: dict[str, float]
    seconds_to_first_token: float
    decode_seconds: float
    prompt_tokens: int
    finish_reason: str

    @property
    def mean_acceptance_length(self) -> float:
        """τ: tokens a round, the bonus token included; NaN without rounds."""
        rounds = len(self.acceptance_lengths)
        return sum(self.acceptance_lengths) / rounds if rounds else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first over the seconds they took; NaN without rounds."""
        tokens = len(self.token_ids) - 1
        return tokens / self.decode_seconds if tokens else float("nan")
