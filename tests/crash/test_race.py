"""Four hundred posts around the end; `make race` has ten thousand."""

import pytest

from tests.crash.race import race, table

TRIALS = 400
SEED = 7
CLOSEST = 40  # shots that must have come within a millisecond of an end, or the race shows nothing


@pytest.mark.sigkill
@pytest.mark.proves("C1", "E3", "J1", "J8")
def test_posts_around_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    tally = race(TRIALS, SEED)
    with capsys.disabled():
        print("\n" + table(tally))
    assert not tally.wrongs
    assert tally.trials == TRIALS
    assert tally.close >= CLOSEST
