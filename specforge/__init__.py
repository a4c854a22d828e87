"""Compose, compare and run tree-structured speculative decoding."""

from specforge._version import __version__

__all__ = ["__version__"]
