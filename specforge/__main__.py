"""``python -m specforge``."""

from specforge.cli import main

main()
