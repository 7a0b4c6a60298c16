"""Faults that `make spec` plants reach the processes that tests start, too."""

import os
from contextlib import AbstractContextManager, nullcontext

from clew.testing.faults import planted


def as_planted() -> AbstractContextManager[None]:
    """Clew with the fault in it that CLEW_FAULT names, if it names one."""
    name = os.environ.get("CLEW_FAULT")
    return planted(name) if name else nullcontext()
