"""``python -m forebay``: the same command as ``forebay``."""

from forebay._cli import main

main()
