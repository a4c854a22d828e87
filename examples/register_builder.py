"""Register a tree builder of one's own and compare it with two that ship.

Runs in seconds on a CPU: the target is a tiny one without a tokenizer, so prompts are token ids.
"""

import json
import math
from pathlib import Path

import torch
from attrs import field, frozen, validators
from rich.console import Console

import specforge
from specforge import DraftTree, PipelineConfig, register
from specforge.interfaces import Draft, Round, Scorer, TreeBuilder

TINY = Path(__file__).parents[1] / "tests" / "data" / "qwen3-tiny-a"


@register.builder("comb")
@frozen(eq=False)
class Comb(TreeBuilder):
    """A chain of the best tokens, beside each of them the next best ``width - 1`` as leaves."""

    width: int = field(default=3, validator=validators.ge(1))

    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        """Follow the best token of every draft position."""
        tokens, parents, scores = [round.root], [-1], [0.0]
        state, tip = scorer.begin(draft, round.limited(self.width)), 0
        for depth in range(min(draft.depth, round.max_depth)):
            candidates = scorer.expand(draft, depth, state)
            best = candidates.tokens[0, : self.width]
            pairs = zip(best.tolist(), candidates.log_probs[0].tolist(), strict=False)
            teeth = [(token, log_prob) for token, log_prob in pairs if log_prob > -math.inf]
            if not teeth:
                break
            first = len(tokens)
            tokens += [token for token, _ in teeth]
            parents += [tip] * len(teeth)
            scores += [scores[tip] + log_prob for _, log_prob in teeth]
            tip = first
            state = scorer.advance(draft, depth, state, torch.zeros_like(best[:1]), best[:1])
        return DraftTree(tokens, parents, log_probs=scores)


def config(builder: str | dict) -> PipelineConfig:
    """Return a pipeline that differs in its builder only."""
    return PipelineConfig(
        target=TINY / "target",
        drafter={"name": "domino", "checkpoint": str(TINY / "domino")},
        scorer={"name": "conditional", "candidates": 16},
        builder=builder,
    )


def main() -> None:
    """Run the example."""
    prompts = json.loads((TINY / "golden.json").read_text())["prompts"][:2]
    comparison = specforge.compare(
        {
            "chain": config("chain"),
            "comb": config({"name": "comb", "width": 3}),
            "heap": config({"name": "heap", "budget": 21}),
        },
        {"example": prompts},
        {"max_new_tokens": 32, "stop_token_ids": []},
    )
    Console().print(comparison.table())
    print("all texts are plain decoding's:", all(row.lossless is True for row in comparison.rows if row.name != "ar"))


if __name__ == "__main__":
    main()
