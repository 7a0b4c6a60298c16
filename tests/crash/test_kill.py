"""Sixty drawn kills; `make crash` has a thousand."""

import pytest

from tests.crash.kill import session, table
from tests.crash.phases import PHASES

KILLS = 60
SEED = 20
LEAST = 3


@pytest.mark.sigkill
@pytest.mark.proves("E3", "J1", "J2", "J8", "L1", "L4", "R1", "R3", "T1", "T3", "T4")
def test_kills_at_drawn_instants(capsys: pytest.CaptureFixture[str]) -> None:
    tally = session(KILLS, SEED)
    with capsys.disabled():
        print("\n" + table(tally))
    assert not tally.wrongs
    assert tally.kills == KILLS
    assert all(tally.fell[phase] >= LEAST for phase in PHASES)
