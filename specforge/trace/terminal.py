"""A trace on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen
from rich.console import Console
from rich.style import Style
from rich.text import Text
from rich.tree import Tree

from specforge.trace.view import Trace, TracedNode, TracedRound

SHADES = ("#f2f2f2", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#084594")
"""Backgrounds for 1, 2, ... tokens a round and, the last one, for all above: one hue, so that lightness tells."""
_DARK_FROM = 7
"""From so many tokens a round on, the background needs light letters."""
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_ACCEPTED = Style(bold=True, color="green")
_OWN = Style(bold=True, color="cyan")
_DIM = Style(dim=True)


def show(trace: Trace, console: Console, most_nodes: int | None) -> None:
    """Print the tree of every round, then the text, coloured and numbered by how many tokens came in a round.

    Args:
        trace: the generation.
        console: where to print; without colours, signs and numbers say the same.
        most_nodes: nodes of a tree to show, the root not counted; accepted ones always are. ``None``: all.
    """
    for number, round in enumerate(trace.rounds, start=1):
        console.print(round_tree(round, number, len(trace.rounds), most_nodes))
        console.print()
    console.print(coloured_text(trace), soft_wrap=True)
    console.print()
    console.print(legend(trace))


def round_tree(round: TracedRound, number: int, of: int, most_nodes: int | None) -> Tree:
    """Return the tree of one round; a run of nodes without branches is one line."""
    shown = [most_nodes is None or node.accepted or node.rank <= most_nodes for node in round.nodes]
    forest = _Forest.of(round.nodes, shown)
    tree = Tree(_heading(round, number, of))
    _grow(tree, round, forest, 0)
    return tree


def _grow(above: Tree, round: TracedRound, forest: _Forest, first: int) -> None:
    run = forest.run(first)
    branch = above.add(_line(round, run))
    for child in forest.children[run[-1]]:
        _grow(branch, round, forest, child)
    if hidden := forest.hidden_below[run[-1]]:
        branch.add(Text(f"… {hidden} more", style=_DIM))


@frozen
class _Forest:
    """The shown nodes: who is below whom, and how many below each are not shown."""

    children: tuple[tuple[int, ...], ...]
    hidden_below: tuple[int, ...]

    @classmethod
    def of(cls, nodes: Sequence[TracedNode], shown: Sequence[bool]) -> _Forest:
        children: list[list[int]] = [[] for _ in nodes]
        hidden = [0] * len(nodes)
        for index, node in enumerate(nodes[1:], start=1):
            if shown[index]:
                children[node.parent].append(index)
                continue
            above = node.parent
            while not shown[above]:
                above = nodes[above].parent
            hidden[above] += 1
        return cls(tuple(map(tuple, children)), tuple(hidden))

    def run(self, first: int) -> list[int]:
        """Return ``first`` and what follows it up to the next branch."""
        run = [first]
        while len(self.children[run[-1]]) == 1 and not self.hidden_below[run[-1]]:
            run.append(self.children[run[-1]][0])
        return run


def _heading(round: TracedRound, number: int, of: int) -> Text:
    count, nodes = len(round.emission.token_ids), len(round.nodes) - 1
    heading = Text(f"round {number} of {of}", style=Style(bold=True))
    heading.append(f"  {nodes} nodes, {count} token{'s' * (count != 1)}, {_milliseconds(round)}", style=_DIM)
    return heading


def _milliseconds(round: TracedRound) -> str:
    spent = {stage: seconds for stage, seconds in round.stage_seconds.items() if seconds > 0.0}
    return ", ".join(f"{stage} {1e3 * seconds:.1f} ms" for stage, seconds in spent.items())


def _line(round: TracedRound, run: Sequence[int]) -> Text:
    line = Text()
    for index in run:
        node = round.nodes[index]
        line.append("  " if line else "")
        line.append(f"✓ {node.text}" if node.accepted else node.text, style=_ACCEPTED if node.accepted else "")
        if node.probability is not None:
            line.append(f" {node.probability:.2f}", style=_DIM)
    if round.targets_own and round.last_accepted in run:
        at = "" if run[-1] == round.last_accepted else f"after {round.nodes[round.last_accepted].text}: "
        line.append(f"  → {at}{round.emission.tokens[-1]}", style=_OWN)
    return line


def coloured_text(trace: Trace) -> Text:
    """Return the text in stretches, a raised number of tokens before each."""
    text = Text()
    for emission in trace.emissions:
        text.append_text(stretch(emission.text, len(emission.token_ids)))
    return text


def stretch(text: str, count: int) -> Text:
    """Return the text of one round, ``count`` tokens: the raised number, then the text on the number's shade."""
    return Text(str(count).translate(_SUPERSCRIPTS), style=_DIM).append(_safe(text), style=_shade(count))


def legend(trace: Trace) -> Text:
    """Return what the colours and signs mean."""
    line = Text("tokens a round: ")
    for count in sorted({len(emission.token_ids) for emission in trace.emissions}):
        line.append(f" {count} ", style=_shade(count)).append(" ")
    line.append(" ✓ accepted", style=_ACCEPTED)
    line.append("  → the target's own token", style=_OWN)
    return line


def _shade(count: int) -> Style:
    background = SHADES[min(max(count, 1), len(SHADES)) - 1]
    return Style(color="white" if count >= _DARK_FROM else "black", bgcolor=background)


def _safe(text: str) -> str:
    """Return ``text`` without what a terminal would take for a command."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
