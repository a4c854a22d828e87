"""Depth by depth into a wide supertree, of which the best nodes are verified (DARTree)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "domino", "checkpoint": "Huang2020/Qwen3-4B-Domino-b16"},
    scorer={"name": "conditional", "candidates": 64, "normalizer": "candidates"},
    builder={"name": "depthwise", "mode": "pruned", "width": 12, "budget": 64, "beta": 0.0},
    verifier="auto",
    dtype="bfloat16",
)
