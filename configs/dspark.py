"""Block-parallel drafter with a Markov head, as a chain (arXiv:2607.05147)."""

from specforge import PipelineConfig

config = PipelineConfig(
    target="Qwen/Qwen3-4B",
    drafter={"name": "dspark", "checkpoint": "deepseek-ai/dspark_qwen3_4b_block7"},
    scorer={"name": "conditional", "candidates": None, "normalizer": "vocabulary"},
    builder="chain",
    verifier="auto",
    dtype="bfloat16",
)
