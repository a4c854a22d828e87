"""The decode loop: prefill, then draft, build, verify and commit until a stop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from attrs import define, field
from torch import Tensor

from specforge.assembly import Parts
from specforge.errors import BrokenPartError
from specforge.interfaces import DraftSession, Round, Verdict, Verifier
from specforge.request import Request
from specforge.result import STAGES, GenerationResult, RoundRecord
from specforge.sampling import KeyedUniforms, choose_next
from specforge.target import Target, TreeCache
from specforge.text import TextStream
from specforge.tree import DraftTree


class Piece(str):
    """Text that became final in a round; ``token_ids`` are the ids of that round.

    The pieces of a stream concatenate to ``result.text``. A piece may be empty: a character that spans tokens is held
    back until it is whole, and a target without a tokenizer has no text.
    """

    token_ids: tuple[int, ...]

    def __new__(cls, text: str, token_ids: Sequence[int]) -> Piece:
        """Attach ``token_ids`` to ``text``."""
        piece = super().__new__(cls, text)
        piece.token_ids = tuple(token_ids)
        return piece


@define
class _Clock:
    """Seconds by stage; waits for the device at stage boundaries, where it would else charge the next stage."""

    device: torch.device
    started: float = field(factory=time.perf_counter)
    seconds: dict[str, float] = field(factory=lambda: dict.fromkeys(STAGES, 0.0))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[name] += time.perf_counter() - begin

    def elapsed(self) -> float:
        return time.perf_counter() - self.started


@define
class _Sequence:
    """The committed tokens: a device buffer for tensors, host lists for text and stops."""

    buffer: Tensor
    length: int
    emitted: list[int] = field(factory=list)

    @classmethod
    def of(cls, request: Request) -> _Sequence:
        prompt = request.prompt_ids
        buffer = torch.empty(len(prompt) + request.limit, dtype=torch.int64, device=prompt.device)
        buffer[: len(prompt)] = prompt
        return cls(buffer, len(prompt))

    @property
    def ids(self) -> Tensor:
        return self.buffer[: self.length]

    def append(self, token_ids: Sequence[int]) -> None:
        end = self.length + len(token_ids)
        self.buffer[self.length : end] = torch.tensor(token_ids, dtype=torch.int64, device=self.buffer.device)
        self.length = end
        self.emitted.extend(token_ids)


class TokenStream:
    """An iterator over the pieces of one generation; ``result`` is there once it is exhausted."""

    def __init__(self, target: Target, parts: Parts, verifier: Verifier, request: Request) -> None:
        self._target = target
        self._parts = parts
        self._verifier = verifier
        self._request = request
        self._draws = KeyedUniforms(request.seed)
        tokenizer = self._target.tokenizer
        self._text = None if tokenizer is None else TextStream(tokenizer, request.stop_strings)
        self._sequence = _Sequence.of(request)
        self._acceptance_lengths: list[int] = []
        self._rounds: list[RoundRecord] = []
        self._yielded = 0
        self._finish_reason: str | None = None
        self._seconds_to_first_token = 0.0
        self._clock = _Clock(self._target.device)
        self._pieces = self._decode()
        self._result: GenerationResult | None = None

    def __iter__(self) -> TokenStream:
        return self

    def __next__(self) -> Piece:
        return next(self._pieces)

    @property
    def result(self) -> GenerationResult:
        """The whole outcome.

        Raises:
            RuntimeError: while pieces are still to come.
        """
        if self._result is None:
            raise RuntimeError("the stream has not ended; iterate over it before asking for its result")
        return self._result

    def _decode(self) -> Iterator[Piece]:
        self._clock = _Clock(self._target.device)
        cache = self._target.new_cache(len(self._request.prompt_ids))
        session = self._prefill(cache)
        paused = 0.0
        while True:
            decoded = self._clock.elapsed()
            if self._finish_reason is not None:
                self._result = self._make_result(decoded - paused - self._seconds_to_first_token)
                yield self._piece(final=True)
                return
            yield self._piece()
            # What the consumer does between two pieces is not the pipeline's time.
            paused += self._clock.elapsed() - decoded
            self._run_round(cache, session)

    def _piece(self, final: bool = False) -> Piece:
        ids = self._sequence.emitted[self._yielded :]
        self._yielded += len(ids)
        return Piece("" if self._text is None else self._text.new_text(final), ids)

    @torch.inference_mode()
    def _prefill(self, cache: TreeCache) -> DraftSession:
        prompt = self._request.prompt_ids
        with self._clock.stage("prefill"):
            output = self._target.prefill(prompt, cache, self._parts.drafter.taps)
            first = choose_next(output.logits[0], prompt, self._request.sampling, self._draws, len(prompt))
            self._emit([first])
        self._seconds_to_first_token = self._clock.elapsed()
        with self._clock.stage("draft"):
            return self._parts.drafter.start(prompt, output.features)

    @torch.inference_mode()
    def _run_round(self, cache: TreeCache, session: DraftSession) -> None:
        before = dict(self._clock.seconds)
        round = Round(
            history=self._sequence.ids,
            max_depth=self._request.limit - len(self._sequence.emitted) - 1,
            sampling=self._request.sampling,
            draws=self._draws,
        )
        tree = self._draft_tree(session, round)
        with self._clock.stage("verify"):
            output = self._target.verify(tree, cache, self._parts.drafter.taps)
            verdict = self._verifier.verify(tree, output.logits, round)
        with self._clock.stage("commit"):
            emitted = self._emit([*(int(tree.token_ids[n]) for n in verdict.path[1:]), verdict.next_token])
            self._parts.builder.observe(tree, verdict)
            if self._finish_reason is None:
                self._commit(tree, verdict, output.features, cache, session)
        self._acceptance_lengths.append(len(emitted))
        if self._request.trace:
            spent = {stage: seconds - before[stage] for stage, seconds in self._clock.seconds.items()}
            self._rounds.append(RoundRecord(tree, verdict.path, tuple(emitted), spent))

    def _draft_tree(self, session: DraftSession, round: Round) -> DraftTree:
        if round.max_depth == 0:
            return DraftTree.root_only(round.root)
        with self._clock.stage("draft"):
            draft = session.draft(round)
        if draft.depth == 0:
            return DraftTree.root_only(round.root)
        with self._clock.stage("build"):
            tree = self._parts.builder.build(draft, self._parts.scorer, round)
        self._check_tree(tree, round)
        return tree

    def _check_tree(self, tree: object, round: Round) -> None:
        name = type(self._parts.builder).__name__
        if not isinstance(tree, DraftTree):
            raise BrokenPartError(f"builder {name} returned a {type(tree).__name__}; it must be a DraftTree")
        depth, size, root = int(tree.depths.max()), self._target.vocab_size, self._sequence.emitted[-1]
        if tree.token_ids[0] != root or depth > round.max_depth:
            raise BrokenPartError(
                f"builder {name} returned a tree with root {tree.token_ids[0]} and depth {depth}; "
                f"the root is {root} and the depth at most {round.max_depth}"
            )
        if tree.token_ids.min() < 0 or tree.token_ids.max() >= size:
            raise BrokenPartError(f"builder {name} returned a tree with token ids outside 0 to {size - 1}")

    def _commit(
        self, tree: DraftTree, verdict: Verdict, features: Tensor | None, cache: TreeCache, session: DraftSession
    ) -> None:
        path = list(verdict.path)
        cache.commit(path)
        tokens = self._sequence.ids[-len(path) - 1 : -1]
        if features is not None and len(path) < len(tree):
            features = features.index_select(1, torch.tensor(path, device=features.device))
        session.commit(tokens, features)

    def _emit(self, token_ids: Sequence[int]) -> list[int]:
        """Append the tokens up to the first that stops; set ``_finish_reason`` when one does."""
        kept: list[int] = []
        for token in token_ids:
            kept.append(token)
            if self._stops(kept):
                break
        self._sequence.append(kept)
        return kept

    def _stops(self, kept: Sequence[int]) -> bool:
        """Return whether generation ends with the last of the tokens that this round has emitted so far."""
        stop_string = self._text is not None and self._text.push(kept[-1])
        if kept[-1] in self._request.stop_token_ids:
            self._finish_reason = "stop_token"
        elif stop_string:
            self._finish_reason = "stop_string"
        elif self._criterion_met(kept):
            self._finish_reason = "stopping_criteria"
        elif len(self._sequence.emitted) + len(kept) >= self._request.limit:
            self._finish_reason = "context" if self._request.cut_by_context else "max_new_tokens"
        return self._finish_reason is not None

    def _criterion_met(self, kept: Sequence[int]) -> bool:
        if self._request.stops_after is None:
            return False
        ids = self._sequence.ids
        return self._request.stops_after(torch.cat([ids, ids.new_tensor(kept)]))

    def _make_result(self, decode_seconds: float) -> GenerationResult:
        return GenerationResult(
            token_ids=list(self._sequence.emitted),
            text=None if self._text is None else self._text.text,
            acceptance_lengths=list(self._acceptance_lengths),
            rounds=list(self._rounds),
            stage_seconds=dict(self._clock.seconds),
            seconds_to_first_token=self._seconds_to_first_token,
            decode_seconds=decode_seconds,
            prompt_tokens=len(self._request.prompt_ids),
            finish_reason=self._finish_reason or "",
        )
