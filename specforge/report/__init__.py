"""Comparison runs and their tables."""
