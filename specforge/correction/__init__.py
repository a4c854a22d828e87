"""Backends of the correction head."""
