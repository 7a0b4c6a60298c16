"""Messages, what is read off them, and the list that states share."""

import msgspec
import pytest

from clew.core.messages import (
    Data,
    Media,
    Message,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Transcript,
    Usage,
    as_part,
    calls_of,
    identified,
    text_of,
)
from clew.errors import UsageError

A, B, C, D = [Message.user(name) for name in "abcd"]


def test_messages_are_made_of_text_and_parts() -> None:
    picture = Media("image/png", url="https://example.org/a.png")
    assert Message.user("look", picture) == Message("user", (Text("look"), picture))
    assert Message.assistant("hi").role == "assistant"
    assert Message.system("be brief").text == "be brief"
    with pytest.raises(UsageError, match="not of int"):
        as_part(3)
    with pytest.raises(UsageError, match="lone surrogate"):
        Message.user("\ud800")


def test_the_words_of_a_message() -> None:
    assert text_of(()) == ""
    assert text_of((Text("a"),)) == "a"
    assert text_of((Thinking("hm"), Text("a"), ToolCall("1.tool.1"), Refusal("b"), Data("x", 1))) == "ab"
    assert calls_of((Text("a"), ToolCall("1.tool.1"))) == (ToolCall("1.tool.1"),)


def test_arguments_of_a_call() -> None:
    assert ToolCall("c", args_text='{"a":1}').args == {"a": 1}
    assert ToolCall("c", args_text="{", invalid="no").args == {}
    assert ToolCall("c", args_text="ignored", _args={"n": {"$number": "9007199254740993"}}).args == {"n": 2**53 + 1}
    assert ToolCall("c").id == "c"
    # On the wire it is `args`.
    stored = msgspec.json.encode(ToolCall("c", _args={"a": 1}))
    assert stored == b'{"kind":"tool_call","call":"c","args":{"a":1}}'
    assert msgspec.json.decode(stored, type=ToolCall).args == {"a": 1}


def test_usage_adds_up() -> None:
    total = Usage(1, 2, 3, 4, 5, False, 1) + Usage(10, 20, 30, 40, 50, True, 2)
    assert total == Usage(11, 22, 33, 44, 55, True, 3)
    assert (total.total, total.input_tokens, total.output_tokens) == (33, 11, 22)
    assert (total.cached_tokens, total.reasoning_tokens) == (33, 55)


@pytest.mark.proves("J9")
def test_messages_from_outside_get_ids_and_no_author() -> None:
    forged = Message("user", A.parts, "x:9", ("x", 3))
    assert identified("r", 4, ()) == ()
    assert identified("r", 4, (forged,)) == (Message("user", A.parts, "r:4"),)
    assert [m.id for m in identified("r:s", 4, (A, B))] == ["r:s:4.1", "r:s:4.2"]


# --- the transcript ---------------------------------------------------------------------------------------------------


def test_an_empty_transcript() -> None:
    empty = Transcript()
    assert (len(empty), list(empty), empty[:], empty.extended() is empty) == (0, [], [], True)
    assert empty == Transcript([], 0)
    assert empty != []
    with pytest.raises(IndexError):
        empty[0]


@pytest.mark.proves("J4")
def test_appending_to_the_longest_holder_shares_the_list() -> None:
    one = Transcript().extended(A)
    two = one.extended(B, C)
    assert two._items is one._items
    assert (list(one), list(two)) == ([A], [A, B, C])
    assert repr(two) == "Transcript(3 messages)"


@pytest.mark.proves("B1")
def test_a_fork_copies_its_prefix_and_nobody_sees_anothers_messages() -> None:
    trunk = Transcript().extended(A, B)
    left = trunk.extended(C)
    right = trunk.extended(D)
    assert (list(trunk), list(left), list(right)) == ([A, B], [A, B, C], [A, B, D])
    assert right._items is not left._items
    # An end that was taken back and decided again.
    assert list(trunk.prefix(1).extended(D)) == [A, D]
    assert list(left) == [A, B, C]


def test_a_prefix_is_shared_and_never_longer() -> None:
    whole = Transcript([A, B, C])
    part = whole.prefix(2)
    assert part._items is whole._items
    assert list(part) == [A, B]
    assert len(part.prefix(9)) == 2


def test_reading_a_shorter_holder_ends_where_it_ends() -> None:
    part = Transcript([A, B, C]).prefix(2)
    assert (part[0], part[1], part[-1], part[-2]) == (A, B, B, A)
    assert (part[:], part[1:], part[-1:], part[::-1], part[5:]) == ([A, B], [B], [B], [B, A], [])
    for index in (2, -3):
        with pytest.raises(IndexError):
            part[index]
    assert C not in part
    assert list(reversed(part)) == [B, A]


def test_equal_transcripts() -> None:
    assert Transcript([A, B, C]).prefix(2) == Transcript([A, B])
    assert hash(Transcript([A, B, C]).prefix(2)) == hash(Transcript([A, B]))
    assert Transcript([A]) != Transcript([B])


def test_results_on_the_wire() -> None:
    assert msgspec.json.encode(ToolResult("c", None, True)) == b'{"kind":"tool_result","call":"c","is_error":true}'


def test_a_call_with_other_arguments_is_the_same_call() -> None:
    asked = ToolCall("1.tool.1", "p", "pay", '{"n": 1}')
    changed = asked.with_args({"n": 2, "why": "é"})
    assert (changed.call, changed.provider_id, changed.args) == ("1.tool.1", "p", {"n": 2, "why": "é"})
    with pytest.raises(UsageError, match="arguments of 'pay'"):
        asked.with_args({"n": b"1"})
