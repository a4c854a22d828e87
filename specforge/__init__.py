"""Compose, compare and run tree-structured speculative decoding with block-parallel drafters."""

from specforge._version import __version__
from specforge.comparing import compare
from specforge.config import PipelineConfig, load_config_file
from specforge.errors import (
    BrokenPartError,
    CheckpointError,
    ConfigError,
    IncompatiblePartsError,
    SpecforgeError,
    UnknownNameError,
    UnsupportedTargetError,
)
from specforge.pipeline import Pipeline
from specforge.registry import register
from specforge.result import GenerationResult, RoundRecord
from specforge.tree import DraftTree

__all__ = [
    "BrokenPartError",
    "CheckpointError",
    "ConfigError",
    "DraftTree",
    "GenerationResult",
    "IncompatiblePartsError",
    "Pipeline",
    "PipelineConfig",
    "RoundRecord",
    "SpecforgeError",
    "UnknownNameError",
    "UnsupportedTargetError",
    "__version__",
    "compare",
    "load_config_file",
    "register",
]
