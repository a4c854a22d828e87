"""The four interfaces (drafter, scorer, tree builder, verifier), the correction head, and what passes between them.

Shapes: ``V`` vocabulary, ``H`` target hidden size, ``D`` draft positions, ``N`` nodes with the root, ``n`` a batch of
paths, ``K`` candidates a path. Depths count edges from the root: the children of a node at depth ``d`` hold the token
of draft position ``d``.

What a part offers and what it cannot do without is stated as capabilities (plain strings; a third party may invent
its own). A pipeline is refused at assembly when a part's ``needs`` are not among what the others give.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from attrs import evolve, frozen
from torch import Tensor

from specforge.children import Children, as_edges, best_children
from specforge.ordering import exact_topk
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.tree import DraftTree

if TYPE_CHECKING:
    from specforge.target import Target

HIDDEN = "draft hidden states"
BASE_LOGITS = "base logits"
CORRECTION_HEAD = "correction head"
CONTINUATIONS = "continuation trie"
CONFIDENCE = "confidence"
SCORES = "scores"
PROPOSAL = "proposal"
SHAPE_BEFORE_DRAWING = "shape fixed before drawing"

Capabilities = frozenset[str]
NOTHING: Capabilities = frozenset()

T = TypeVar("T")


@frozen(eq=False)
class Round:
    """What one round may know and use.

    Attributes:
        history: ``[L]`` int64, the committed token ids, the root last; on the target's device.
        max_depth: the deepest node that can still be of use: a tree of depth ``d`` emits up to ``d + 1`` tokens, so
            this is one less than the number of tokens that can still be emitted. Builders never go deeper; 0 means
            a plain decoding step.
        sampling: how the target's distribution is processed.
        draws: ``u(position, purpose)``, the only source of randomness.
        max_children: most children of one node that the builder can use, where it knows; a scorer may cut its rows
            there, a builder sets it with ``limited`` before ``Scorer.begin``.
    """

    history: Tensor
    max_depth: int
    sampling: SamplingParams
    draws: KeyedUniforms
    max_children: int | None = None

    def limited(self, max_children: int) -> Round:
        """Return this round for a builder that can use so many children of one node at most."""
        most = max_children if self.max_children is None else min(max_children, self.max_children)
        return evolve(self, max_children=most)

    @property
    def root(self) -> int:
        """The last committed token."""
        return int(self.history[-1])

    @property
    def root_position(self) -> int:
        """The root's index in the sequence."""
        return int(self.history.shape[0]) - 1


@frozen(eq=False)
class Draft:
    """One drafter pass.

    Attributes:
        depth: ``D``, the draft positions this draft can speak of.
        hidden: ``[D, H]`` the drafter's hidden states after its final norm, or ``None``.
        base_logits: ``[D, V]`` path-independent logits over the target's vocabulary, or ``None``.
        correction: the drafter's head, ready to run, or ``None``.
        confidence: ``[D]`` float32 in [0, 1], how likely the drafter thinks each position is to be accepted given
            that the ones before it were, or ``None``.
        payload: whatever the drafter's own scorer reads (a trie, a model with its cache), opaque to all others.
    """

    depth: int
    hidden: Tensor | None = None
    base_logits: Tensor | None = None
    correction: CorrectionHead | None = None
    confidence: Tensor | None = None
    payload: Any = None


@frozen(eq=False)
class Candidates:
    """Next-token candidates of ``n`` paths, best first; ties by smaller token id.

    Attributes:
        tokens: ``[n, K]`` int64.
        log_probs: ``[n, K]`` float32, at most 0; ``-inf`` (or NaN) marks an entry that is no candidate, whose token
            is a valid id all the same.
    """

    tokens: Tensor
    log_probs: Tensor


class State(Protocol):
    """A scorer's or head's state on ``n`` paths; opaque to builders."""

    def select(self, rows: Tensor) -> State:
        """Return the state of the paths ``rows`` (int64 ``[m]``)."""
        ...


@frozen(eq=False)
class Verdict:
    """What the target made of a tree.

    Attributes:
        path: the accepted nodes from the root on, the root (0) included.
        next_token: the token chosen at the last accepted node, the next root.
    """

    path: tuple[int, ...]
    next_token: int

    @property
    def acceptance_length(self) -> int:
        """Tokens that the round emits: the accepted drafts and the next root."""
        return len(self.path)


class Part(ABC):
    """What all four kinds of part share: what they need and give.

    ``needs`` and ``gives`` hold for every instance; ``may_give`` are capabilities that an option switches on.
    """

    needs: ClassVar[Capabilities] = NOTHING
    gives: ClassVar[Capabilities] = NOTHING
    may_give: ClassVar[Capabilities] = NOTHING

    def given(self) -> Capabilities:
        """Return what this instance gives: ``gives``, unless its options change that."""
        return self.gives

    def needed(self) -> Capabilities:
        """Return what this instance needs: ``needs``, unless its options change that."""
        return self.needs


class DraftSession(ABC):
    """A drafter's state for one generation; two streams never share one."""

    @abstractmethod
    def draft(self, round: Round) -> Draft:
        """Propose a block after ``round.history``, whose last token is the root."""

    @abstractmethod
    def commit(self, token_ids: Tensor, features: Tensor | None) -> None:
        """Take in what a round committed.

        Args:
            token_ids: ``[n]`` int64, the old root and the accepted drafts, in order.
            features: ``[1, n, len(taps) * H]`` their target features, or ``None`` when the drafter has no taps.
        """


class Drafter(Part):
    """Proposes a block of tokens in one cheap pass.

    ``taps`` are the target decoder layers (0-based) whose output hidden states feed the drafter, concatenated in this
    order; ``()`` when no target features are needed. ``default_scorer`` names the scorer used where none is chosen.
    """

    taps: tuple[int, ...] = ()
    default_scorer: ClassVar[str] = "marginal"

    def bind(self, target: Target) -> None:
        """Get ready to draft for ``target``; called once, at assembly.

        Raises:
            IncompatiblePartsError: when the drafter does not fit the target; the message names both values.
        """

    @abstractmethod
    def start(self, prompt_ids: Tensor, features: Tensor | None) -> DraftSession:
        """Begin one generation.

        Args:
            prompt_ids: ``[P]`` int64, the prompt without the root.
            features: ``[1, P, len(taps) * H]``, or ``None`` when the drafter has no taps.
        """


class Scorer(Part):
    """Says how likely each next token is on a given path. Holds no state of its own between calls.

    ``path_independent`` promises that the candidates at a depth are the same for every path, so that a builder may
    expand each depth once.

    ``static`` promises that what it runs depends on shapes only, so that a round may be recorded once and replayed on
    other numbers: its methods take no decision from a tensor's values and never wait for a device; it reads of a draft
    only hidden states, base logits and the correction, and of a round only the last token, ``max_depth`` and
    ``max_children``; its own options never change; and it follows entries that are no candidates as any others.
    """

    gives: ClassVar[Capabilities] = frozenset({SCORES})
    path_independent: ClassVar[bool] = False
    static: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A way round another class's ``expand`` would lose what this class's own does.
        if "expand" in vars(cls) and "best_children" not in vars(cls):
            cls.best_children = Scorer.best_children  # type: ignore[method-assign]

    @abstractmethod
    def begin(self, draft: Draft, round: Round) -> State:
        """Return the state of one path, the root alone (a batch of one)."""

    @abstractmethod
    def expand(self, draft: Draft, depth: int, state: State) -> Candidates:
        """Return the candidates for draft position ``depth`` on each path of ``state``."""

    def best_children(self, draft: Draft, depth: int, state: State, scores: Tensor, width: int) -> Children:
        """Return the best children of all paths of ``state``.

        The same as to rank what ``expand`` returns by path score, then by parent and by rank. A scorer that can tell
        the best children of a depth without ranking the candidates of each path may do so; a subclass that has its
        own ``expand`` only gets this one back.

        Args:
            draft: the round's draft.
            depth: the draft position.
            state: the state on ``n`` paths, at least 1.
            scores: ``[n]`` float32 their path scores, in the total order.
            width: how many, at least 1.
        """
        candidates = self.expand(draft, depth, state)
        if draft.correction is not None:
            return draft.correction.best_children(scores, candidates.log_probs, candidates.tokens, width, ranked=True)
        edges = as_edges(candidates.log_probs)
        return best_children(scores, edges, edges, candidates.tokens, width, ranked=True)

    @abstractmethod
    def advance(self, draft: Draft, depth: int, state: State, parent_rows: Tensor, tokens: Tensor) -> State:
        """Return the states of chosen children.

        Args:
            draft: the round's draft.
            depth: the draft position of ``tokens``, that is the depth of the parents.
            state: the parents' states, as given to ``expand``.
            parent_rows: ``[m]`` int64, the row of ``state`` each child descends from.
            tokens: ``[m]`` int64, the children's tokens; builders that do not wait for the device may also pass
                entries that are no candidates, and make no use of what comes of them.
        """


class TreeBuilder(Part):
    """Spends a node budget on the best paths."""

    needs: ClassVar[Capabilities] = frozenset({SCORES})

    def bind(self, target: Target, drafter: Drafter) -> None:
        """Get ready to build for ``target`` and ``drafter``; called once, at assembly."""

    @abstractmethod
    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        """Arrange the best guesses as a tree, at most ``min(draft.depth, round.max_depth)`` deep."""

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        """Learn from a verified round; by default nothing."""


class Verifier(Part):
    """Walks a tree with the target's logits so that the output is what the target alone would have produced."""

    @abstractmethod
    def verify(self, tree: DraftTree, logits: Tensor, round: Round) -> Verdict:
        """Choose the accepted path and the next token.

        Args:
            tree: the verified tree.
            logits: ``[N, V]`` the target's unprocessed logits, row i the distribution after node i's path.
            round: the round the tree was built for.
        """

    def check(self, sampling: SamplingParams) -> None:
        """Refuse sampling options that this verifier cannot serve losslessly.

        Raises:
            ConfigError: naming the option and the verifiers that would do.
        """


class CorrectionHead(ABC):
    """What a causal head adds to the base logits given the realised path; all that a conditional scorer knows.

    Attributes:
        first_corrected: draft positions below this one keep their base logits; the state advances over them.
        replays: ``replay`` records what it is given, so that builders should offer it whole builds.
    """

    first_corrected: int = 0
    replays: bool = False

    def tuned(self) -> CorrectionHead:
        """Return this head as plain operations run it fastest on its device; by default as it is."""
        return self

    @abstractmethod
    def begin(self, draft: Draft, root: Tensor) -> State:
        """Return the state after the root, ``[1]`` int64."""

    def prepare(self, state: State, candidates: Tensor) -> State:
        """Return the root's ``state``, ready for a round that asks about these ``candidates`` only.

        Called at most once a round, right after ``begin``; row ``d`` of ``candidates``, ``[D, M]`` int64, is then what
        every ``correct`` at draft position ``d`` passes, unless it passes ``None``. By default there is nothing to do.
        """
        return state

    @abstractmethod
    def correct(self, draft: Draft, depth: int, state: State, candidates: Tensor | None) -> Tensor:
        """Return ``[n, M]`` float32 to add to the base logits of ``candidates`` (``[M]``; ``None``: all ``V``)."""

    def slice_log_probs(
        self, draft: Draft, depth: int, state: State, base: Tensor, candidates: Tensor, temperature: float
    ) -> Tensor:
        """Return ``[n, M]`` float32, the log-softmax over ``candidates`` of corrected logits over ``temperature``.

        ``base`` ``[M]`` float32 are their base logits. A head may do this in one go; by default it is ``correct`` and
        what is left of the formula.
        """
        logits = base + self.correct(draft, depth, state, candidates)
        return (logits if temperature == 1.0 else logits / temperature).log_softmax(dim=-1)

    def best_of_slice(
        self, draft: Draft, depth: int, state: State, base: Tensor, candidates: Tensor, temperature: float, width: int
    ) -> tuple[Tensor, Tensor]:
        """Return the ``width`` best of ``slice_log_probs``: ``[n, K]`` float32, and their columns, ``[n, K]`` int64.

        The order is that of ``exact_topk``.
        """
        return exact_topk(self.slice_log_probs(draft, depth, state, base, candidates, temperature), width)

    @abstractmethod
    def advance(self, draft: Draft, depth: int, state: State, parent_rows: Tensor, tokens: Tensor) -> State:
        """Return the states after ``tokens`` at draft position ``depth``; arguments as in ``Scorer.advance``."""

    def best_children(
        self, scores: Tensor, log_probs: Tensor, tokens: Tensor, width: int, ranked: bool = False
    ) -> Children:
        """Return the ``width`` best children of nodes of path scores ``[n]`` float32; see ``children.best_children``.

        Not a matter of the correction, but it follows one at every depth, and a device is faster with both in kernels.

        Args:
            scores: ``[n]`` float32 path scores, in the total order.
            log_probs: ``[n, M]`` float32, as ``slice_log_probs`` gives them; NaN marks what is no candidate.
            tokens: ``[n, M]`` int64.
            width: how many, at least 1.
            ranked: promises that rows are best first.
        """
        edges = as_edges(log_probs)
        return best_children(scores, edges, edges, tokens, width, ranked)

    def replay(self, key: Hashable, build: Callable[[Draft, Tensor], T], draft: Draft, root: Tensor) -> T:
        """Return ``build(draft, root)``; a head that ``replays`` may do what an earlier call did on other numbers.

        Args:
            key: says, with the shapes of the draft, all that ``build`` depends on.
            build: runs the same operations on the same shapes whatever the values, never waits for the device, and
                works with the draft that it is given.
            draft: hidden states, base logits and the correction.
            root: ``[1]`` int64.

        Returns:
            What ``build`` returns. Its tensors may be overwritten by the next call.
        """
        return build(draft, root)


@frozen(eq=False)
class NoState:
    """The state of a scorer that keeps none: only how many paths there are."""

    rows: int = 1

    def select(self, rows: Tensor) -> NoState:
        """Return the state of ``len(rows)`` paths."""
        return NoState(int(rows.shape[0]))
