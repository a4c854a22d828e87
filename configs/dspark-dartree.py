"""Dartree over DSpark's Markov head (DARTree)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "dspark", "checkpoint": "deepseek-ai/dspark_qwen3_4b_block7"},
    scorer={"name": "conditional", "candidates": 64, "normalizer": "candidates"},
    builder={"name": "depthwise", "mode": "pruned", "width": 12, "budget": 64, "beta": 0.0},
    verifier="auto",
    dtype="bfloat16",
)
