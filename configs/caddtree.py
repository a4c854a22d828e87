"""Ddtree that stops growing where a larger tree costs more than it promises (arXiv:2606.01813)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "dflash", "checkpoint": "z-lab/Qwen3-4B-DFlash-b16"},
    scorer="marginal",
    builder={"name": "heap", "budget": 128, "cost_model": "auto"},
    verifier="auto",
    dtype="bfloat16",
)
