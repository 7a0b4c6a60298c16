"""How a run ends, in words and back."""

import msgspec
import pytest

from clew.core.outcomes import (
    Blocked,
    Cancelled,
    Completed,
    Failed,
    Outcome,
    Requested,
    Stopped,
    detail_of,
    parse_outcome,
)

OUTCOMES: list[tuple[Outcome, str, str]] = [
    (Completed(), "natural", ""),
    (Requested(), "behavior_requested", ""),
    (Stopped("turns", "5 of 5"), "stopped:turns", "5 of 5"),
    (Stopped("a:b"), "stopped:a:b", ""),
    (Blocked("no: never"), "blocked:no: never", "no: never"),
    (Blocked(), "blocked:", ""),
    (Cancelled(reason="enough"), "cancelled", "enough"),
    (Failed("timeout", "after: 3 s"), "error", "timeout: after: 3 s"),
    (Failed("timeout"), "error", "timeout"),
    (Failed(), "error", ""),
]


@pytest.mark.proves("J8")
@pytest.mark.parametrize(("outcome", "text", "detail"), OUTCOMES, ids=repr)
def test_an_outcome_in_words_and_back(outcome: Outcome, text: str, detail: str) -> None:
    assert (str(outcome), detail_of(outcome)) == (text, detail)
    assert parse_outcome(text, detail) == outcome
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=Outcome) == outcome


@pytest.mark.parametrize(
    "text",
    ["", "stopped", "stopped:", "natural:", "natural:x", "behavior_requested:x", "cancelled:x", "error:x", "done"],
)
def test_what_is_no_outcome(text: str) -> None:
    with pytest.raises(ValueError, match="is no outcome"):
        parse_outcome(text)


def test_the_keyword_field_has_its_own_name_on_the_wire() -> None:
    assert msgspec.json.encode(Failed("a", "b")) == b'{"kind":"failed","class":"a","message":"b"}'
