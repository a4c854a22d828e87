"""A generation seen round by round: the draft trees, what was accepted of them, and the text they became."""

from specforge.trace.page import write_page
from specforge.trace.terminal import show
from specforge.trace.view import Emission, Trace, TracedNode, TracedRound, record

__all__ = ["Emission", "Trace", "TracedNode", "TracedRound", "record", "show", "write_page"]
