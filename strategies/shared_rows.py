"""What path-independent scorers have in common: the round's rows, made once, and a state that points at them."""

from __future__ import annotations

from attrs import evolve, frozen
from torch import Tensor

from specforge.interfaces import Candidates, Draft, Scorer


@frozen(eq=False)
class SharedRows:
    """One row of candidates a draft position, the same for every path.

    Attributes:
        tokens: ``[D, K]`` int64.
        log_probs: ``[D, K]`` float32, best first, ties by smaller token id.
        paths: how many paths the state speaks of.
    """

    tokens: Tensor
    log_probs: Tensor
    paths: int = 1

    def select(self, rows: Tensor) -> SharedRows:
        """Return the state of ``len(rows)`` paths."""
        return evolve(self, paths=int(rows.shape[0]))


class SharedRowsScorer(Scorer):
    """A scorer whose ``begin`` makes all rows of the round."""

    path_independent = True

    def expand(self, draft: Draft, depth: int, state: SharedRows) -> Candidates:  # type: ignore[override]
        """Return the row of ``depth``, once a path; nothing is computed or copied."""
        return Candidates(
            state.tokens[depth].expand(state.paths, -1),
            state.log_probs[depth].expand(state.paths, -1),
        )

    def advance(  # type: ignore[override]
        self, draft: Draft, depth: int, state: SharedRows, parent_rows: Tensor, tokens: Tensor
    ) -> SharedRows:
        """Return the state of as many paths as there are ``tokens``."""
        return state.select(tokens)
