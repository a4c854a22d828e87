"""Depth by depth, the budget spread evenly over the depths, all nodes verified (DARTree)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "domino", "checkpoint": "Huang2020/Qwen3-4B-Domino-b16"},
    scorer={"name": "conditional", "candidates": 64, "normalizer": "candidates"},
    builder={"name": "depthwise", "mode": "fixed", "budget": 64},
    verifier="auto",
    dtype="bfloat16",
)
