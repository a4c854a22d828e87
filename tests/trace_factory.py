"""Traces made by hand, with tokens that pages and terminals must not take for commands."""

from __future__ import annotations

from typing import Any

import numpy as np

from specforge.result import RoundRecord
from specforge.trace import Emission, Trace
from specforge.trace.view import _round, visible
from specforge.tree import DraftTree

WORDS = [
    "</script><script>document.title='taken'</script>",
    "<b>",
    " the",
    "\n",
    "&amp;",
    "\x1b[31m",
    " naïve",
    "שלום",
    "é",
]
"""Token ``i`` is ``WORDS[i]``, and beyond them a plain word."""
PROMPT = "<img src=x onerror=alert(1)> $title ${x} [bold]"


def word(token: int) -> str:
    return WORDS[token] if token < len(WORDS) else f" word{token}"


def random_tree(nodes: int, seed: int, root: int = 1) -> DraftTree:
    """Return a tree of random shape, scores falling along its paths, no two children alike."""
    generator = np.random.default_rng(seed)
    parents, scores = [-1], [0.0]
    for node in range(1, nodes + 1):
        parents.append(int(generator.integers(max(0, node - 6), node)))
        scores.append(scores[parents[-1]] + float(np.log(generator.uniform(0.05, 1.0))))
    return DraftTree([root, *range(3, 3 + nodes)], parents, log_probs=scores)


def make_record(tree: DraftTree, steps: int, cut: int | None = None) -> RoundRecord:
    """Accept the first child ``steps`` times; ``cut`` is how many tokens a stop left."""
    path = [0]
    while len(path) <= steps and tree.children(path[-1]):
        path.append(tree.children(path[-1])[0])
    emitted = [*(int(tree.token_ids[node]) for node in path[1:]), 0]
    seconds = {"prefill": 0.0, "draft": 0.0021, "build": 0.0132, "verify": 0.0417, "commit": 0.0004}
    return RoundRecord(tree, tuple(path), tuple(emitted[:cut]), seconds)


def emission(tokens: tuple[int, ...]) -> Emission:
    return Emission(tokens, tuple(visible(word(token)) for token in tokens), "".join(map(word, tokens)))


def make_trace(rounds: int = 9, nodes: int = 60) -> Trace:
    records = [
        make_record(random_tree(nodes, seed), seed % 9, 3 if seed == rounds - 1 else None) for seed in range(rounds)
    ]
    made = [_round(r, emission(r.token_ids), lambda token: visible(word(token)), scored=True) for r in records]
    return Trace("dominotree <&>", "a target", PROMPT, emission((1,)), tuple(made), figures(records))


def figures(records: list[RoundRecord]) -> dict[str, Any]:
    tokens = sum(record.acceptance_length for record in records)
    return {
        "prompt_tokens": 12,
        "tokens": 1 + tokens,
        "rounds": len(records),
        "acceptance_length": tokens / len(records) if records else None,
        "tokens_per_second": 31.4 if records else None,
        "finish_reason": "stop_token",
    }
