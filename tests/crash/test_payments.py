"""A hundred and fifty payments; `make payments` has two thousand."""

import pytest

from tests.crash.payments import session, table

PAYMENTS = 150
SEED = 4
LEAST = 10  # of each finding
HARMS = 3


@pytest.mark.sigkill
@pytest.mark.proves("T2", "T7", "T11")
def test_the_books_agree(capsys: pytest.CaptureFixture[str]) -> None:
    tally, harm = session(PAYMENTS, SEED)
    with capsys.disabled():
        print("\n" + table(tally, harm))
    assert not tally.wrongs
    assert all(tally.findings[finding] >= LEAST for finding in ("done", "not_done", "unknown"))
    assert harm.done.total() >= HARMS
