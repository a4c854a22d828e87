"""Ddtree over rows corrected along Domino's greedy chain only (baseline in the DARTree paper)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "domino", "checkpoint": "Huang2020/Qwen3-4B-Domino-b16"},
    scorer="chain-conditional",
    builder={"name": "heap", "budget": 64},
    verifier="auto",
    dtype="bfloat16",
)
