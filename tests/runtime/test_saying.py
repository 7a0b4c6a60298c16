"""What is being said: fragments that come over several ways."""

import pytest

from clew.core.deltas import TextDelta
from clew.ports import Fragment
from clew.runtime.saying import Saying


@pytest.mark.proves("E1")
def test_fragments_join_over_repeats_and_stop_at_gaps() -> None:
    saying = Saying("1.model", 1, 1, 2)
    told = [(0, "ab"), (0, "ab"), (1, "bcd"), (4, "e"), (9, "z"), (5, "f")]
    added = [saying.add(TextDelta(step="1.model", offset=offset, text=text)) for offset, text in told]
    assert added == [True, False, True, True, False, True]
    assert "".join([piece.text for piece in saying.pieces if isinstance(piece, Fragment)]) == "abcdef"
