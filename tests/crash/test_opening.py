"""Several processes make, and leave, one file at the same time."""

import subprocess
import sys

import pytest

from tests.crash.ledger import REPOSITORY

ROUNDS = 40  # without care for others, every fifth failed


@pytest.mark.proves("R1")
def test_a_new_file_opened_by_many_at_once() -> None:
    openers = subprocess.run(
        [sys.executable, "-m", "tests.crash.openers", str(ROUNDS)],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert openers.stdout == ""
    assert openers.returncode == 0, openers.stderr
