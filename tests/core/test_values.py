"""The forms that a value takes in a journal, and back."""

import enum
import json
import math
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.core.spec import ToolSpec
from clew.core.values import (
    MAX_DEPTH,
    MAX_INTEGER_BITS,
    MAX_SAFE_INTEGER,
    SHORT,
    blob_form,
    canonical,
    check_text,
    clean_text,
    digest,
    digest_bytes,
    encoded,
    nesting,
    pack,
    parse_arguments,
    unpack,
)
from clew.errors import JournalCorrupt, UsageError

pytestmark = pytest.mark.proves("Z1")


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Ratio(float):
    pass


FORMS: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (0, 0),
    (-1.5, -1.5),
    ("", ""),
    ("łódź 🛶", "łódź 🛶"),
    (MAX_SAFE_INTEGER, MAX_SAFE_INTEGER),
    (-MAX_SAFE_INTEGER, -MAX_SAFE_INTEGER),
    (MAX_SAFE_INTEGER + 1, {"$number": "9007199254740993"}),
    (-(10**30), {"$number": "-1000000000000000000000000000000"}),
    (math.inf, {"$number": "Infinity"}),
    (-math.inf, {"$number": "-Infinity"}),
    (b"", {"$bytes": ""}),
    (b"\x00\xff", {"$bytes": "AP8="}),
    ([1, [2, {"a": None}]], [1, [2, {"a": None}]]),
    ({}, {}),
    ({"a$": 1}, {"a$": 1}),
    ({"$number": "5"}, {"$literal": {"$number": "5"}}),
    ({"$anything": {"$b": 1}, "c": 2}, {"$literal": {"$anything": {"$literal": {"$b": 1}}, "c": 2}}),
    ({"$literal": {"x": 1}}, {"$literal": {"$literal": {"x": 1}}}),
    ({"a": {"$blob": "sha256:0"}}, {"a": {"$literal": {"$blob": "sha256:0"}}}),
]


@pytest.mark.parametrize(("value", "form"), FORMS, ids=repr)
def test_each_form_there_and_back(value: Any, form: Any) -> None:
    assert pack(value) == form
    assert unpack(form) == value
    assert unpack(json.loads(encoded(form))) == value


def test_what_is_no_number() -> None:
    assert pack(math.nan) == {"$number": "NaN"}
    assert math.isnan(unpack({"$number": "NaN"}))


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ((1, 2), [1, 2]),
        (Colour.RED, "red"),
        (Size.BIG, 3),
        (Ratio(0.5), 0.5),
        ({Colour.RED: Colour.RED}, {"red": "red"}),
        (OrderedDict(a=1), {"a": 1}),
        (MappingProxyType({"a": (1,)}), {"a": [1]}),
    ],
    ids=repr,
)
def test_what_is_like_json_becomes_json(value: Any, form: Any) -> None:
    packed = pack(value)
    assert packed == form
    assert type(packed) is type(form)
    assert json.loads(encoded(packed)) == form


def test_a_packed_value_is_a_copy() -> None:
    given_: dict[str, Any] = {"a": [1]}
    packed = pack(given_)
    given_["a"].append(2)
    assert packed == {"a": [1]}


def nested(depth: int, around: Any = 0) -> Any:
    for _ in range(depth):
        around = [around]
    return around


@pytest.mark.proves("T8")
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("\ud800", "lone surrogate at position 0"),
        ({"a\udfff": 1}, "lone surrogate at position 1"),
        ({1: 2}, "the key 1: JSON keys are text"),
        (object(), "a object cannot be stored"),
        ({1, 2}, "a set cannot be stored"),
        ([1j], "a complex cannot be stored"),
        (nested(MAX_DEPTH + 1), "deeper than 64 levels"),
        ({"a": nested(MAX_DEPTH)}, "deeper than 64 levels"),
        (1 << MAX_INTEGER_BITS, "more than 10000 bits"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_what_no_journal_could_hold_is_refused(value: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        pack(value)


def test_just_not_too_deep_and_just_not_too_large() -> None:
    for value in (nested(MAX_DEPTH), (1 << MAX_INTEGER_BITS) - 1, 1 - (1 << MAX_INTEGER_BITS)):
        assert unpack(msgspec.json.decode(encoded(pack(value)))) == value


@pytest.mark.parametrize("form", [{"$bytes": "*"}, {"$bytes": "é"}, {"$number": "seven"}, {"$number": ""}])
def test_a_form_that_never_was_is_corruption(form: Any) -> None:
    with pytest.raises(JournalCorrupt):
        unpack([form])


def test_what_only_looks_like_a_form_is_itself() -> None:
    for value in ({"$number": 5}, {"$bytes": None}, {"$literal": 1}, {"$blob": "sha256:0"}):
        assert unpack(value) == value


@pytest.mark.proves("J6")
def test_a_reference_is_fetched_whole_or_left() -> None:
    data = encoded(pack({"b": b"x"}))
    form, name = blob_form(data, "application/json")
    assert form == {"$blob": name, "size": len(data), "type": "application/json"}
    assert name == digest_bytes(data) == "sha256:" + name.removeprefix("sha256:")
    assert unpack({"a": [form]}) == {"a": [form]}
    assert unpack({"a": [form]}, {name: data}.__getitem__) == {"a": [{"b": b"x"}]}


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["$number", "$literal", "$"]), inner),
    max_leaves=12,
)


@given(json_like)
def test_whatever_can_be_said_comes_back(value: Any) -> None:
    packed = pack(value)
    stored = encoded(packed)
    assert unpack(json.loads(stored)) == value
    assert digest(packed) == digest(json.loads(stored))


def test_one_spelling() -> None:
    assert canonical({"b": 1, "a": [True]}) == b'{"a":[true],"b":1}'
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert canonical(ToolSpec(name="n", effect="read")) == b'{"effect":"read","name":"n"}'


def test_text() -> None:
    assert check_text("łódź") == "łódź"
    with pytest.raises(UsageError, match="lone surrogate at position 1"):
        check_text("a\ud800")
    assert (clean_text("plain"), clean_text("łódź"), clean_text("a\ud800b")) == ("plain", "łódź", "a?b")


@pytest.mark.proves("L8")
@pytest.mark.parametrize(
    ("text", "args"),
    [("", {}), (" \n", {}), ("{}", {}), ('{"a":[1]}', {"a": [1]}), (f'{{"a":"{"x" * SHORT}"}}', {"a": "x" * SHORT})],
    ids=["nothing", "space", "empty", "short", "long"],
)
def test_arguments(text: str, args: dict[str, Any]) -> None:
    assert parse_arguments(text) == args


@pytest.mark.proves("L8")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "Expecting property name"),
        ("[]", "must be a JSON object, not list"),
        ("null", "must be a JSON object, not NoneType"),
        ('{"a":"\\ud800"}', "lone surrogate"),
        ('{"a":' * 100 + "1" + "}" * 100, "deeper than 64"),
        ('{"a":1' + "0" * 4_000 + "}", "10000 bits"),
    ],
    ids=str,
)
def test_arguments_that_are_none_say_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_arguments(text)


def test_numbers_in_arguments_that_json_does_not_know() -> None:
    parsed = parse_arguments('{"a":NaN,"b":123456789012345678901234567890}')
    assert math.isnan(parsed["a"])
    assert parsed["b"] == 123456789012345678901234567890


def test_how_deep_a_text_nests_counts_no_brackets_inside_of_its_strings() -> None:
    deep = "[" * 70 + '"]]]"' + "]" * 70
    assert nesting(deep) == 70
    assert nesting(json.dumps(["[" * 200, "a\\", '"]'])) == 1
    assert nesting("[1, {}]") == 0, "what cannot be too deep is not looked at"
