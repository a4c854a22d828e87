"""The most likely tree, every node scored by Domino's head given its own path (DominoTree)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "domino", "checkpoint": "Huang2020/Qwen3-4B-Domino-b16"},
    scorer={"name": "conditional", "candidates": 64, "normalizer": "candidates"},
    builder={"name": "heap", "budget": 64},
    verifier="auto",
    dtype="bfloat16",
)
