"""`clew check`: which verdict a call would get, and why; nothing runs and nothing is stored."""

import pytest

from tests.cli.conftest import Shell


@pytest.mark.proves("T10")
@pytest.mark.parametrize(
    ("amount", "verdict", "rule", "reason"),
    [
        (5, "allow", 'allow("*")', ""),
        (500, "ask", 'ask("pay", amount=gt(100))', ""),
        (5_000, "deny", 'deny("pay", "too much", amount=gt(1000))', "too much"),
        (50_000, "block", 'block("pay", "alarm", amount=gt(10000))', "alarm"),
    ],
)
def test_it_tells_the_verdict_and_the_rule_that_gives_it_and_every_rule_that_matches(
    read_only: Shell, amount: int, verdict: str, rule: str, reason: str
) -> None:
    [told] = read_only.json("check", "check", "guarded:agent", "pay", f'{{"amount": {amount}}}')
    assert (told["agent"], told["tool"], told["args"]) == ("guard", "pay", {"amount": amount})
    assert (told["verdict"], told["rule"], told["reason"]) == (verdict, rule, reason)
    order = ["allow", "ask", "deny", "block"]
    assert [one["verdict"] for one in told["matched"]] == order[: order.index(verdict) + 1]
    assert told["asked_without_deps"] == ["needs_the_bank", "night"]
    assert told["not_asked"] == ["Cautious.before_tool"]


def test_it_says_the_same_in_words(read_only: Shell) -> None:
    said = read_only.clew("check", "guarded:agent", "pay", '{"amount": 5000}')
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        'deny: pay {"amount": 5000}',
        '  by deny("pay", "too much", amount=gt(1000)): too much',
        '  also allow("*"), which says allow',
        '  also ask("pay", amount=gt(100)), which says ask',
        "  asked without deps and outside of a run: needs_the_bank, night",
        "  not asked, may change the call first: Cautious.before_tool",
    ]


def test_without_a_rule_a_call_is_allowed(read_only: Shell) -> None:
    said = read_only.clew("check", "guarded:plain", "pay", '{"amount": 5}')
    assert (said.code, said.out) == (0, 'allow: pay {"amount": 5}\n  by default: no rule matches\n')


def test_functions_are_asked_without_deps_and_what_they_raise_denies(read_only: Shell) -> None:
    [told] = read_only.json("check", "check", "guarded:agent", "look")
    assert (told["verdict"], told["rule"]) == ("deny", "needs_the_bank")
    assert "AttributeError" in told["reason"]
    said = read_only.clew("check", "guarded:agent", "pay", r'{"amount": 1, "to": "\u001b[31mowl"}')
    assert "deny: pay" in said.out
    assert "\x1b[31m" not in said.out


@pytest.mark.parametrize(
    ("words", "verdict", "rule"),
    [
        (("ship",), "ask", "needs_approval"),
        (("ship", '{"count": 2}'), "allow", 'allow("*")'),
        (("ship", '{"count": 0}'), "answer", 'answer("ship", "shipped", count=0)'),
        (("wipe",), "ask", "needs_approval"),
        (("pay",), "invalid", "arguments"),
        (("pay", '{"amount": "much"}'), "invalid", "arguments"),
    ],
)
def test_what_tools_declare_counts_as_well(read_only: Shell, words: tuple[str, ...], verdict: str, rule: str) -> None:
    [told] = read_only.json("check", "check", "guarded:agent", *words)
    assert (told["verdict"], told["rule"]) == (verdict, rule)
    assert ("amount" in told["reason"]) == (verdict == "invalid")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("guarded:agent", "shell"), "it has pay, ship, wipe, look"),
        (("guarded:agent", "pay", "[1]"), "must be a JSON object"),
        (("guarded:agent", "pay", "{"), "no JSON object"),
        (("guarded:desk", "pay"), "say which with --agent"),
        (("guarded:nobody", "pay"), "has no 'nobody'"),
    ],
)
def test_what_cannot_be_checked_is_refused(read_only: Shell, words: tuple[str, ...], why: str) -> None:
    assert why in read_only.refused(2, "check", *words)


def test_a_runtime_names_its_agents_and_nothing_is_stored(read_only: Shell) -> None:
    said = read_only.clew("check", "guarded:desk", "wipe", "--agent", "plain")
    assert said.out == "ask: wipe {}\n  by needs_approval\n"
    assert not {"clew.db", "desk.db"} & read_only.files()
