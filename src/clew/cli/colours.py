"""Whether colours are wanted: on a terminal, unless NO_COLOR or TERM=dumb says otherwise."""

import os
import sys


def wanted(*, err: bool = False) -> bool:
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
