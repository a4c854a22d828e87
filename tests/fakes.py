"""Fakes: a table-driven scorer and target, and three drafters of kinds that the built-in ones are not.

The three show that the interfaces carry a trie whose continuations depend on the path, an autoregressive drafter with
a key-value cache and one forward a depth, and a recurrent head that reads the hidden row at its depth. Importing this
module registers them as ``fake-trie``, ``fake-autoregressive`` and ``fake-recurrent``, each with a scorer of the same
name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from specforge.interfaces import (
    HIDDEN,
    Candidates,
    Draft,
    Drafter,
    DraftSession,
    Round,
    Scorer,
)
from specforge.registry import register

Path = tuple[int, ...]


def best_first(log_probs: Tensor, limit: int | None = None) -> Candidates:
    """Rank ``[n, V]`` rows: best first, ties by smaller token id."""
    order = torch.sort(log_probs, dim=-1, descending=True, stable=True)
    return Candidates(order.indices[:, :limit], order.values[:, :limit].float())


# --- tables


@frozen(eq=False)
class Paths:
    """The drafts on each path, the root not included."""

    paths: tuple[Path, ...]
    limit: int | None = None

    def select(self, rows: Tensor) -> Paths:
        return evolve(self, paths=tuple(self.paths[row] for row in rows.tolist()))


@frozen(eq=False)
class TableScorer(Scorer):
    """Fixed numbers: ``table(path)`` gives ``[V]`` log-probabilities after the drafts ``path``."""

    table: Callable[[Path], Tensor]

    def begin(self, draft: Draft, round: Round) -> Paths:
        return Paths(((),), round.max_children)

    def expand(self, draft: Draft, depth: int, state: Paths) -> Candidates:
        assert all(len(path) == depth for path in state.paths)
        return best_first(torch.stack([self.table(path) for path in state.paths]), state.limit)

    def advance(self, draft: Draft, depth: int, state: Paths, parent_rows: Tensor, tokens: Tensor) -> Paths:
        steps = zip(parent_rows.tolist(), tokens.tolist(), strict=True)
        return evolve(state, paths=tuple((*state.paths[row], token) for row, token in steps))


class DepthTableScorer(TableScorer):
    """As ``TableScorer``, for tables that look at the length of the path only."""

    path_independent = True


@frozen(eq=False)
class RandomTable:
    """Random logits (log-probabilities, if normalised) of spread ``scale``, fixed by the seed and the whole path."""

    vocab_size: int
    seed: int
    scale: float = 1.5
    normalised: bool = False
    rows: dict[Path, Tensor] = field(factory=dict, init=False)

    def __call__(self, path: Sequence[int]) -> Tensor:
        key = tuple(path)
        if key not in self.rows:
            code = self.seed * 1_000_003 + 17
            for token in key:
                code = (code * 1_000_003 + token + 1) % (2**61 - 1)
            generator = torch.Generator().manual_seed(code)
            row = torch.randn(self.vocab_size, generator=generator) * self.scale
            self.rows[key] = torch.log_softmax(row, -1) if self.normalised else row
        return self.rows[key]


# --- a trie whose continuations depend on the path


@frozen(eq=False)
class TrieNodes:
    """The nested dictionary that each path has reached."""

    nodes: tuple[dict, ...]
    device: torch.device

    def select(self, rows: Tensor) -> TrieNodes:
        return evolve(self, nodes=tuple(self.nodes[row] for row in rows.tolist()))


class _PhraseSession(DraftSession):
    def __init__(self, config: FakeTrieDrafter) -> None:
        self._config = config

    def draft(self, round: Round) -> Draft:
        trie: dict = {}
        for phrase in self._config.phrases:
            for index, token in enumerate(phrase):
                if token == round.root:
                    node = trie
                    for following in phrase[index + 1 : index + 1 + self._config.length]:
                        node = node.setdefault(following, {})
        return Draft(depth=self._config.length if trie else 0, payload=trie)

    def commit(self, token_ids: Tensor, features: Tensor | None) -> None:
        pass


@register.drafter("fake-trie")
@frozen(eq=False)
class FakeTrieDrafter(Drafter):
    """Offers what follows the root in fixed phrases. A phrase that is the reference output makes it a good drafter."""

    gives = frozenset({"fake phrases"})
    default_scorer = "fake-trie"

    phrases: Sequence[Sequence[int]] = ()
    length: int = 6

    def start(self, prompt_ids: Tensor, features: Tensor | None) -> DraftSession:
        assert features is None
        return _PhraseSession(self)


@register.scorer("fake-trie")
@frozen(eq=False)
class FakeTrieScorer(Scorer):
    """All children of a trie node are equally likely; rows differ in length and contents from path to path."""

    needs = frozenset({"fake phrases"})

    def begin(self, draft: Draft, round: Round) -> TrieNodes:
        return TrieNodes((draft.payload,), round.history.device)

    def expand(self, draft: Draft, depth: int, state: TrieNodes) -> Candidates:
        width = max(1, max(len(node) for node in state.nodes))
        tokens = [sorted(node) + [0] * (width - len(node)) for node in state.nodes]
        log_probs = torch.full((len(state.nodes), width), float("-inf"))
        for row, node in enumerate(state.nodes):
            log_probs[row, : len(node)] = -torch.log(torch.tensor(float(max(1, len(node)))))
        return Candidates(torch.tensor(tokens, device=state.device), log_probs.to(state.device))

    def advance(self, draft: Draft, depth: int, state: TrieNodes, parent_rows: Tensor, tokens: Tensor) -> TrieNodes:
        steps = zip(parent_rows.tolist(), tokens.tolist(), strict=True)
        return evolve(state, nodes=tuple(state.nodes[row].get(token, {}) for row, token in steps))


# --- an autoregressive drafter: one forward a depth, with a key-value cache


@frozen(eq=False)
class TinyAttention:
    """One attention layer over token embeddings, seeded: the smallest model that has a key-value cache."""

    vocab_size: int
    width: int = 8
    seed: int = 0
    weights: dict[str, Tensor] = field(init=False)

    def __attrs_post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        shapes = {"embed": (self.vocab_size, self.width), "head": (self.vocab_size, self.width)}
        shapes |= dict.fromkeys(("query", "key", "value"), (self.width, self.width))
        weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        object.__setattr__(self, "weights", weights)

    def keys_values(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """``[..., L]`` tokens -> two ``[..., L, width]``."""
        x = self.weights["embed"].to(tokens.device)[tokens]
        return x @ self.weights["key"].to(x), x @ self.weights["value"].to(x)

    def log_probs(self, last: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return ``[n, V]`` after ``last`` ``[n]``, given the keys and values ``[n, L, width]`` of the whole path."""
        x = self.weights["embed"].to(last.device)[last]
        scores = torch.einsum("nd,nld->nl", x @ self.weights["query"].to(x), keys) / self.width
        mixed = torch.einsum("nl,nld->nd", torch.softmax(scores, dim=-1), values)
        return torch.log_softmax((x + mixed) @ self.weights["head"].to(x).T, dim=-1)

    def reference(self, tokens: Sequence[int]) -> Tensor:
        """What ``log_probs`` must give after ``tokens``, computed without any cache."""
        ids = torch.tensor([list(tokens)])
        return self.log_probs(ids[:, -1], *self.keys_values(ids))[0]


@frozen(eq=False)
class AttentionState:
    """Each path's last token and its keys and values, those of the committed tokens included."""

    last: Tensor
    keys: Tensor
    values: Tensor

    def select(self, rows: Tensor) -> AttentionState:
        return AttentionState(self.last[rows], self.keys[rows], self.values[rows])


class _AttentionSession(DraftSession):
    def __init__(self, config: FakeAutoregressiveDrafter, prompt_ids: Tensor) -> None:
        self._config = config
        self._keys, self._values = config.model.keys_values(prompt_ids)

    def draft(self, round: Round) -> Draft:
        assert len(self._keys) == round.root_position, "the session must have seen all committed tokens, once each"
        return Draft(depth=self._config.length, payload=(self._config.model, self._keys, self._values))

    def commit(self, token_ids: Tensor, features: Tensor | None) -> None:
        assert features is None
        keys, values = self._config.model.keys_values(token_ids)
        self._keys, self._values = torch.cat([self._keys, keys]), torch.cat([self._values, values])


@register.drafter("fake-autoregressive")
@frozen(eq=False)
class FakeAutoregressiveDrafter(Drafter):
    """A tiny language model that drafts token by token."""

    gives = frozenset({"fake language model"})
    default_scorer = "fake-autoregressive"

    vocab_size: int
    length: int = 4
    seed: int = 0
    model: TinyAttention = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "model", TinyAttention(self.vocab_size, seed=self.seed))

    def start(self, prompt_ids: Tensor, features: Tensor | None) -> DraftSession:
        assert features is None
        return _AttentionSession(self, prompt_ids)


@register.scorer("fake-autoregressive")
@frozen(eq=False)
class FakeAutoregressiveScorer(Scorer):
    """One forward of the drafter's model a depth."""

    needs = frozenset({"fake language model"})

    def begin(self, draft: Draft, round: Round) -> AttentionState:
        model, keys, values = draft.payload
        return self._append(model, keys[None], values[None], round.history[-1:])

    def expand(self, draft: Draft, depth: int, state: AttentionState) -> Candidates:
        return best_first(draft.payload[0].log_probs(state.last, state.keys, state.values))

    def advance(
        self, draft: Draft, depth: int, state: AttentionState, parent_rows: Tensor, tokens: Tensor
    ) -> AttentionState:
        return self._append(draft.payload[0], state.keys[parent_rows], state.values[parent_rows], tokens)

    @staticmethod
    def _append(model: TinyAttention, keys: Tensor, values: Tensor, tokens: Tensor) -> AttentionState:
        key, value = model.keys_values(tokens)
        return AttentionState(tokens, torch.cat([keys, key[:, None]], 1), torch.cat([values, value[:, None]], 1))


# --- a recurrent head that reads the hidden row at its depth


@frozen(eq=False)
class TinyRecurrence:
    """``s' = tanh(A s + embed(token))``; scores read ``[hidden at the depth ; s]``."""

    vocab_size: int
    width: int = 6
    seed: int = 0
    weights: dict[str, Tensor] = field(init=False)

    def __attrs_post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        shapes = {"embed": (self.vocab_size, self.width), "step": (self.width, self.width)}
        shapes |= {"head": (self.vocab_size, 2 * self.width), "position": (64, self.width)}
        weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        object.__setattr__(self, "weights", weights)

    def step(self, state: Tensor, tokens: Tensor) -> Tensor:
        """``[n, width]``, ``[n]`` -> ``[n, width]``."""
        embedded = self.weights["embed"].to(state)[tokens]
        return torch.tanh(state @ self.weights["step"].to(state) + embedded)

    def log_probs(self, hidden: Tensor, state: Tensor) -> Tensor:
        """``[width]``, ``[n, width]`` -> ``[n, V]``."""
        read = torch.cat([hidden.to(state).expand_as(state), state], dim=-1)
        return torch.log_softmax(read @ self.weights["head"].to(state).T, dim=-1)


@frozen(eq=False)
class RecurrentState:
    """The recurrent state of each path."""

    values: Tensor

    def select(self, rows: Tensor) -> RecurrentState:
        return RecurrentState(self.values[rows])


class _RecurrentSession(DraftSession):
    def __init__(self, config: FakeRecurrentDrafter, prompt_ids: Tensor, features: Tensor | None) -> None:
        self._config = config
        self._seen = 0
        self._summary = torch.zeros(())
        self.commit(prompt_ids, features)

    def draft(self, round: Round) -> Draft:
        assert self._seen == round.root_position, "the session must have seen all committed tokens, once each"
        position = self._config.model.weights["position"][: self._config.length]
        hidden = position.to(round.history.device) + self._summary.to(round.history.device)
        return Draft(depth=self._config.length, hidden=hidden, payload=self._config.model)

    def commit(self, token_ids: Tensor, features: Tensor | None) -> None:
        self._seen += len(token_ids)
        if self._config.taps:
            assert features is not None
            assert features.shape[:2] == (1, len(token_ids))
            self._summary = features[0, -1].float().mean()
        else:
            assert features is None


@register.drafter("fake-recurrent")
@frozen(eq=False)
class FakeRecurrentDrafter(Drafter):
    """Hidden rows by position, shifted by the mean of the last committed token's features when it has taps."""

    gives = frozenset({HIDDEN, "fake recurrence"})
    default_scorer = "fake-recurrent"

    vocab_size: int
    taps: tuple[int, ...] = ()
    length: int = 4
    seed: int = 0
    model: TinyRecurrence = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "model", TinyRecurrence(self.vocab_size, seed=self.seed))

    def start(self, prompt_ids: Tensor, features: Tensor | None) -> DraftSession:
        return _RecurrentSession(self, prompt_ids, features)


@register.scorer("fake-recurrent")
@frozen(eq=False)
class FakeRecurrentScorer(Scorer):
    """The recurrence over the path, with the hidden row of the depth."""

    needs = frozenset({HIDDEN, "fake recurrence"})

    def begin(self, draft: Draft, round: Round) -> RecurrentState:
        model: TinyRecurrence = draft.payload
        zero = torch.zeros(1, model.width, device=round.history.device)
        return RecurrentState(model.step(zero, round.history[-1:]))

    def expand(self, draft: Draft, depth: int, state: RecurrentState) -> Candidates:
        return best_first(draft.payload.log_probs(draft.hidden[depth], state.values))

    def advance(
        self, draft: Draft, depth: int, state: RecurrentState, parent_rows: Tensor, tokens: Tensor
    ) -> RecurrentState:
        return RecurrentState(draft.payload.step(state.values[parent_rows], tokens))
