"""Rules: what they match, which one wins, how they read."""

from decimal import Decimal
from typing import Any

import pytest

from clew.errors import UsageError
from clew.policy import Middleware, Rule, allow, answer, ask, block, deny, gt, judge, lt
from clew.testing import tool_context

ALL = [
    allow("pay"),
    answer("pay", {"paid": True}, "cached", invoice="A-1"),
    ask("pay", amount=gt(100)),
    deny("pay", "too much", amount=gt(1000)),
    block("pay", "fraud", to="evil*"),
]


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        ({"amount": 5}, "allow"),
        ({"amount": 5, "invoice": "A-1"}, "answer"),
        ({"amount": 500, "invoice": "A-1"}, "ask"),
        ({"amount": 5000}, "deny"),
        ({"amount": 5000, "to": "evil corp"}, "block"),
    ],
)
@pytest.mark.parametrize("rules", [ALL, ALL[::-1]])
def test_block_before_deny_before_ask_before_answer_before_allow(
    rules: list[Rule], args: dict[str, Any], kind: str
) -> None:
    verdict = judge(rules, "pay", args)
    assert verdict is not None
    assert verdict.kind == kind


def test_of_one_kind_the_first_wins() -> None:
    assert judge([deny("*", "first"), deny("pay", "second")], "pay", {}) == deny("*", "first")


def test_no_rule_no_verdict() -> None:
    assert judge(ALL, "look", {"amount": 5000}) is None
    assert judge([], "pay", {}) is None


@pytest.mark.parametrize(
    ("rule", "tool", "args", "matches"),
    [
        (allow("read_*"), "read_file", {}, True),
        (allow("read_*"), "Read_file", {}, False),
        (allow(), "anything", {}, True),
        (deny("shell", command="rm *"), "shell", {"command": "rm -rf /"}, True),
        (deny("shell", command="rm *"), "shell", {"command": "rm -rf /\nls"}, True),
        (deny("shell", command="rm *"), "shell", {"command": "ls; rm -rf /"}, False),
        (deny("shell", command="rm *"), "shell", {}, False),
        (deny("x", n=gt(100)), "x", {"n": 101}, True),
        (deny("x", n=gt(100)), "x", {"n": 100}, False),
        (deny("x", n=gt(100)), "x", {"n": Decimal("100.01")}, True),
        (deny("x", n=gt(100)), "x", {"n": "100.01"}, True),
        (deny("x", n=gt(100)), "x", {"n": float("inf")}, True),
        (deny("x", n=gt(100)), "x", {"n": float("nan")}, False),
        (deny("x", n=gt(100)), "x", {"n": "many"}, False),
        (deny("x", n=gt(0)), "x", {"n": True}, False),
        (deny("x", n=gt(0)), "x", {"n": None}, False),
        (deny("x", n=lt(Decimal("0.1"))), "x", {"n": 0.05}, True),
        (deny("x", force=True), "x", {"force": True}, True),
        (deny("x", force=True), "x", {"force": 1}, False),
        (deny("x", n=1), "x", {"n": True}, False),
        (deny("x", n=1), "x", {"n": 1.0}, True),
        (deny("x", to=None), "x", {"to": None}, True),
        (deny("x", to=None), "x", {}, False),
        (deny("x", tags=["a"]), "x", {"tags": ["a"]}, True),
        (deny("x", tags='*"b"*'), "x", {"tags": ["a", "b"]}, True),
        (deny("x", n="1*"), "x", {"n": Decimal("1.5")}, True),
        (deny("x", n="*Unsaid*"), "x", {"n": type("Unsaid", (), {"__repr__": lambda self: "Unsaid"})()}, True),
    ],
)
def test_what_matches(rule: Rule, tool: str, args: dict[str, Any], matches: bool) -> None:
    assert rule.matches(tool, args) is matches


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (allow("read_*"), 'allow("read_*")'),
        (deny("shell", command="rm *"), 'deny("shell", command="rm *")'),
        (deny("shell", "never", command="rm *"), 'deny("shell", "never", command="rm *")'),
        (ask("pay", amount=gt(100), to=lt(Decimal("0.5"))), 'ask("pay", amount=gt(100), to=lt(0.5))'),
        (block("x", force=True, to=None, n=1.5, tags=["a"]), 'block("x", force=True, to=None, n=1.5, tags=["a"])'),
        (answer("x", {"a": 1}, 'say "hi"'), 'answer("x", {"a":1}, "say \\"hi\\"")'),
    ],
)
def test_a_rule_reads_as_it_was_written(rule: Rule, text: str) -> None:
    assert str(rule) == text


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: allow(3), "the first argument is a pattern of tool names"),  # type: ignore[arg-type]
        (lambda: allow(""), "pattern of tool names"),
        (lambda: deny("x", 3), "the reason is text, not 3"),  # type: ignore[arg-type]
        (lambda: deny("x", n=lambda v: v > 3), "n= is a function: a rule is data"),
        (lambda: deny("x", n=object()), "cannot be stored as JSON"),
        (lambda: answer("x", object()), "cannot be stored as JSON"),
        (lambda: gt("3"), r"policy.gt\('3'\): give a number"),  # type: ignore[arg-type]
        (lambda: lt(float("nan")), "give a number"),
        (lambda: gt(True), "give a number"),
    ],
)
def test_what_is_no_rule(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


async def test_middleware_does_nothing_by_itself() -> None:
    quiet: Any = Middleware()
    ctx = tool_context(None)
    for hook, args in (
        ("on_input", ([],)),
        ("on_attach", ()),
        ("before_model", (None,)),
        ("after_model", (None,)),
        ("before_tool", (None,)),
        ("after_tool", (None, None)),
        ("on_turn_end", ()),
        ("on_finish", (None,)),
    ):
        assert await getattr(quiet, hook)(ctx, *args) is None
