"""``python -m leakmeter.cli``."""

from leakmeter.cli import main

main()
