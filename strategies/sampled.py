"""A tree drawn from the draft distribution, for rejection verification."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import field, frozen

from specforge.checks import number
from specforge.errors import ConfigError
from specforge.interfaces import PROPOSAL, SHAPE_BEFORE_DRAWING, Draft, Round, Scorer, TreeBuilder
from specforge.registry import register
from specforge.strategies.drawing import draw_tree
from specforge.tree import DraftTree


def _branching(values: Iterable[int] | int) -> tuple[int, ...]:
    if isinstance(values, int):
        return (values,)
    return tuple(values)


@register.builder("sampled")
@frozen(eq=False)
class Sampled(TreeBuilder):
    """Draws a tree of fixed branching, siblings without replacement.

    The tree's shape never depends on what is drawn, as multi-round rejection demands (SpecInfer, arXiv:2305.09781;
    without replacement as in recursive rejection sampling, arXiv:2402.14160). A path that runs out of candidates has
    fewer children.

    Attributes:
        branching: children of each node at depth 0, 1, ...; its length is the depth of the tree.
        temperature: of the draft distribution; the target's own options do not bear on it.

    Raises:
        ConfigError: naming the option, its value and what would be right.
    """

    gives = frozenset({PROPOSAL, SHAPE_BEFORE_DRAWING})

    branching: tuple[int, ...] = field(default=(3, 2, 1, 1, 1, 1), converter=_branching)
    temperature: float = 1.0

    def __attrs_post_init__(self) -> None:
        whole = all(isinstance(b, int) and not isinstance(b, bool) and b >= 1 for b in self.branching)
        if not (self.branching and whole):
            raise ConfigError(f"branching is {self.branching!r}; it must be whole numbers of at least 1, one a depth")
        if number(self.temperature, "temperature of the draft") <= 0.0:
            raise ConfigError(f"temperature of the draft is {self.temperature!r}; it must be above 0")

    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        """Draw the tree; see ``draw_tree``."""
        return draw_tree(draft, scorer, round, self.branching, self.temperature)
