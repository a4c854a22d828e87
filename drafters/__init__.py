"""The built-in drafters; importing this package registers them."""

from specforge.drafters import ngram as ngram
from specforge.drafters import none as none
