"""Dominotree with caddtree's cost-aware stop (negative result in the DominoTree paper)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "domino", "checkpoint": "Huang2020/Qwen3-4B-Domino-b16"},
    scorer={"name": "conditional", "candidates": 64, "normalizer": "candidates"},
    builder={"name": "heap", "budget": 128, "cost_model": "auto"},
    verifier="auto",
    dtype="bfloat16",
)
