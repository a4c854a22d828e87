"""Dominotree without conditioning: same drafter, same tree, marginal scores (ablation in the DominoTree paper)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "domino", "checkpoint": "Huang2020/Qwen3-4B-Domino-b16"},
    scorer="marginal",
    builder={"name": "heap", "budget": 64},
    verifier="auto",
    dtype="bfloat16",
)
