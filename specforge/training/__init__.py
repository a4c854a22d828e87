"""Drafter training: data the target writes itself, cached features, block-parallel losses, validation by replay."""

from specforge.training.config import (
    Architecture,
    Data,
    Objective,
    Optimization,
    Reporting,
    TrainConfig,
    load_train_config,
)

__all__ = [
    "Architecture",
    "Data",
    "Objective",
    "Optimization",
    "Reporting",
    "TrainConfig",
    "load_train_config",
]
