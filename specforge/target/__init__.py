"""The adapter over a Hugging Face causal LM: tree forwards, taps, the KV cache and attention."""

from specforge.target.bundled import BUNDLED_TARGET
from specforge.target.cache import TreeCache
from specforge.target.loading import load_target
from specforge.target.model import Target, TargetOutput

__all__ = ["BUNDLED_TARGET", "Target", "TargetOutput", "TreeCache", "load_target"]
