"""The built-in scorers and tree builders; importing this package registers them."""

from specforge.strategies import chain as chain
from specforge.strategies import chain_conditional as chain_conditional
from specforge.strategies import conditional as conditional
from specforge.strategies import depthwise as depthwise
from specforge.strategies import heap as heap
from specforge.strategies import marginal as marginal
from specforge.strategies import none as none
from specforge.strategies import sampled as sampled
from specforge.strategies import trie as trie
