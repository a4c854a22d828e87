"""The most likely tree of DFlash's independent positions, best first (arXiv:2604.12989)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "dflash", "checkpoint": "z-lab/Qwen3-4B-DFlash-b16"},
    scorer="marginal",
    builder={"name": "heap", "budget": 64},
    verifier="auto",
    dtype="bfloat16",
)
