"""Correction heads, and the backends that run them; importing this package registers the built-in ones."""

from specforge.correction import backends as backends
from specforge.correction import graph_backend as graph_backend
from specforge.correction import triton_backend as triton_backend
