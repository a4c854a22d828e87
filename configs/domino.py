"""DFlash with a recurrent head that corrects each position given the ones before, as a chain (arXiv:2605.29707)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "domino", "checkpoint": "Huang2020/Qwen3-4B-Domino-b16"},
    scorer={"name": "conditional", "candidates": None, "normalizer": "vocabulary"},
    builder="chain",
    verifier="auto",
    dtype="bfloat16",
)
