"""The built-in verifiers; importing this package registers them."""

from specforge.verifiers import greedy as greedy
from specforge.verifiers import rejection as rejection
from specforge.verifiers import sampling as sampling
