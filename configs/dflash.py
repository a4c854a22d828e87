"""Block-parallel drafter, its best token at each position as a chain (arXiv:2602.06036)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "dflash", "checkpoint": "z-lab/Qwen3-4B-DFlash-b16"},
    scorer="marginal",
    builder="chain",
    verifier="auto",
    dtype="bfloat16",
)
