"""The built-in scorers and tree builders; importing this package registers them."""

from specforge.strategies import chain as chain
from specforge.strategies import none as none
from specforge.strategies import sampled as sampled
from specforge.strategies import trie as trie
