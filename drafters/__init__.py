"""The built-in drafters; importing this package registers them."""

from specforge.drafters import dflash as dflash
from specforge.drafters import domino as domino
from specforge.drafters import dspark as dspark
from specforge.drafters import ngram as ngram
from specforge.drafters import none as none
