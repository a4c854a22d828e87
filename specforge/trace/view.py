"""What a trace shows, apart from how: nodes with tokens and probabilities, rounds, and the text in stretches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from attrs import frozen

from specforge.decoding import Piece
from specforge.interfaces import SCORES
from specforge.pipeline import Pipeline
from specforge.request import Prompt
from specforge.result import GenerationResult, RoundRecord
from specforge.tree import DraftTree

_VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥"}
_UNFINISHED = "�"


@frozen
class TracedNode:
    """A node of a draft tree.

    Attributes:
        token_id: its token.
        text: the token as it is shown, with visible spaces; the id where there is no tokenizer.
        parent: the parent's index in the round's nodes; -1 for the root.
        depth: 0 for the root.
        probability: of the token given its path, as the scorer has it; ``None`` for the root and without scores.
        path_probability: of the whole path, as the builder ranks it; ``None`` without scores.
        accepted: whether the node was verified and emitted (the root was, by an earlier round).
        rank: where the node stands when a tree must be shown in part: a parent always before its children.
    """

    token_id: int
    text: str
    parent: int
    depth: int
    probability: float | None
    path_probability: float | None
    accepted: bool
    rank: int


@frozen
class Emission:
    """What one step emitted.

    Attributes:
        token_ids: the tokens.
        tokens: each token as it is shown.
        text: the text that became final with them; token ids, each followed by a space, without a tokenizer.
    """

    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    text: str


@frozen
class TracedRound:
    """One round.

    Attributes:
        nodes: of the verified tree, the root first.
        emission: the accepted tokens, and the target's own token after them unless a stop came first.
        targets_own: whether the last emitted token is the target's own, that is no node of the tree.
        stage_seconds: seconds by stage.
    """

    nodes: tuple[TracedNode, ...]
    emission: Emission
    targets_own: bool
    stage_seconds: dict[str, float]

    @property
    def last_accepted(self) -> int:
        """The node that the target's own token follows."""
        return max(i for i, node in enumerate(self.nodes) if node.accepted)


@frozen
class Trace:
    """A generation.

    Attributes:
        pipeline: what the pipeline is called.
        target: what the target is called.
        prompt: as it was given.
        first: the token that the prefill gave.
        rounds: all rounds.
        figures: numbers of the whole generation.
    """

    pipeline: str
    target: str
    prompt: str
    first: Emission
    rounds: tuple[TracedRound, ...]
    figures: dict[str, Any]

    @property
    def emissions(self) -> tuple[Emission, ...]:
        """What the prefill and then each round emitted; the texts concatenate to the whole text."""
        return (self.first, *(round.emission for round in self.rounds))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; a round's nodes are columns, one list for each attribute of a node."""
        names = [a.name for a in attrs.fields(TracedNode)]
        rounds = [
            {
                "nodes": {name: [getattr(node, name) for node in round.nodes] for name in names},
                "emission": attrs.asdict(round.emission),
                "targets_own": round.targets_own,
                "stage_seconds": round.stage_seconds,
            }
            for round in self.rounds
        ]
        return {**attrs.asdict(self, recurse=False), "first": attrs.asdict(self.first), "rounds": rounds}


def record(pipeline: Pipeline, name: str, prompt: Prompt, **options: Any) -> Trace:
    """Decode, and keep what every round did.

    Args:
        pipeline: decodes.
        name: what it is called in the trace.
        prompt: as in ``Pipeline.generate``.
        **options: as in ``Pipeline.generate``.

    Raises:
        ConfigError: as ``Pipeline.generate`` does.
    """
    stream = pipeline.stream(prompt, **options, trace=True)
    show = _shower(pipeline.target.tokenizer)
    emissions = [_emission(piece, show, pipeline.target.tokenizer is not None) for piece in stream]
    scored = SCORES in pipeline.parts.builder.needed()
    rounds = [
        _round(record, emission, show, scored)
        for record, emission in zip(stream.result.rounds, emissions[1:], strict=True)
    ]
    shown = prompt if isinstance(prompt, str) else str(prompt)
    return Trace(name, pipeline.target.name, shown, emissions[0], tuple(rounds), _figures(stream.result))


def _figures(result: GenerationResult) -> dict[str, Any]:
    rounds = len(result.acceptance_lengths)
    return {
        "prompt_tokens": result.prompt_tokens,
        "tokens": len(result.token_ids),
        "rounds": rounds,
        "acceptance_length": result.mean_acceptance_length if rounds else None,
        "tokens_per_second": result.tokens_per_second if rounds else None,
        "finish_reason": result.finish_reason,
    }


def _shower(tokenizer: Any) -> Callable[[int], str]:
    def show(token_id: int) -> str:
        if tokenizer is None:
            return str(token_id)
        text = tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return f"#{token_id}" if not text or _UNFINISHED in text else visible(text)

    return show


def visible(text: str) -> str:
    """Return ``text`` with spaces, line breaks and unprintable characters in a form that can be seen."""
    return "".join(
        _VISIBLE.get(c) or (c if c.isprintable() else c.encode("unicode_escape").decode("ascii")) for c in text
    )


def _emission(piece: Piece, show: Callable[[int], str], has_text: bool) -> Emission:
    text = str(piece) if has_text else "".join(f"{token} " for token in piece.token_ids)
    return Emission(piece.token_ids, tuple(map(show, piece.token_ids)), text)


def _round(record: RoundRecord, emission: Emission, show: Callable[[int], str], scored: bool) -> TracedRound:
    tree, emitted = record.tree, len(record.token_ids)
    accepted = set(record.path[: emitted + 1])
    ranks = importance(tree, record.path)
    nodes = [
        TracedNode(
            token_id=int(tree.token_ids[node]),
            text=show(int(tree.token_ids[node])),
            parent=int(tree.parents[node]),
            depth=int(tree.depths[node]),
            probability=_probability(_edge(tree, node)) if scored and node else None,
            path_probability=_probability(float(tree.log_probs[node])) if scored else None,
            accepted=node in accepted,
            rank=ranks[node],
        )
        for node in range(len(tree))
    ]
    return TracedRound(tuple(nodes), emission, emitted == len(record.path), record.stage_seconds)


def _edge(tree: DraftTree, node: int) -> float:
    if tree.edge_log_probs is not None:
        return float(tree.edge_log_probs[node])
    return float(tree.log_probs[node] - tree.log_probs[tree.parents[node]])


def _probability(log_prob: float) -> float | None:
    return None if math.isnan(log_prob) else float(f"{math.exp(min(log_prob, 0.0)):.4g}")


def importance(tree: DraftTree, path: Sequence[int]) -> list[int]:
    """Return each node's rank: the path first, then by falling score, every node after its parent."""
    scores = tree.log_probs.tolist()
    ranks: dict[int, int] = {}
    for node in (*path, *sorted(range(len(tree)), key=lambda n: (-scores[n], tree.depths[n], n))):
        for above in tree.path(node):
            ranks.setdefault(above, len(ranks))
    return [ranks[node] for node in range(len(tree))]
