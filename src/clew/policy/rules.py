"""Rules as data: which calls may run, judged by tool name and arguments, and written as text that reads back."""

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from msgspec import Struct

from clew.core.entries import VerdictKind
from clew.core.values import canonical, pack
from clew.errors import UsageError

Number: TypeAlias = int | float | Decimal

ORDER: tuple[VerdictKind, ...] = ("block", "deny", "ask", "answer", "allow")


class Bound(Struct, frozen=True):
    """A number that an argument must lie above or below."""

    how: str
    than: Number

    def __str__(self) -> str:
        return f"{self.how}({self.than})"

    def matches(self, value: object) -> bool:
        number = _number(value)
        if number is None:
            return False
        than = Decimal(str(self.than))
        return number > than if self.how == "gt" else number < than


class Verdict(Struct, frozen=True):
    """What policy says of a call. `value` is the result of a call that is answered without being run."""

    kind: VerdictKind
    reason: str = ""
    value: Any = None


class Rule(Verdict, frozen=True):
    """A verdict on calls whose tool matches a pattern and whose named arguments all match theirs.

    Text is a pattern as for file names (`*`, `?`, `[…]`, case counts) on the argument's text; `gt` and `lt` compare
    numbers; anything else must be equal. An argument that is not given matches nothing.
    """

    tool: str = "*"
    args: Mapping[str, Any] = {}

    def matches(self, tool: str, args: Mapping[str, Any]) -> bool:
        return fnmatchcase(tool, self.tool) and all(
            name in args and _matches(wanted, args[name]) for name, wanted in self.args.items()
        )

    def __str__(self) -> str:
        said = [_quoted(self.tool)]
        if self.kind == "answer":
            said.append(_spoken(self.value))
        if self.reason:
            said.append(_quoted(self.reason))
        said += [f"{name}={_spoken(wanted)}" for name, wanted in self.args.items()]
        return f"{self.kind}({', '.join(said)})"


def allow(tool: str = "*", reason: str = "", /, **args: Any) -> Rule:
    """Let calls run that another rule would not stop."""
    return _rule("allow", tool, reason, args)


def ask(tool: str = "*", reason: str = "", /, **args: Any) -> Rule:
    """Have a person approve calls before they run."""
    return _rule("ask", tool, reason, args)


def deny(tool: str = "*", reason: str = "", /, **args: Any) -> Rule:
    """Tell the model that calls are not allowed; the run goes on."""
    return _rule("deny", tool, reason, args)


def block(tool: str = "*", reason: str = "", /, **args: Any) -> Rule:
    """End the run when such a call is asked for."""
    return _rule("block", tool, reason, args)


def answer(tool: str, value: Any, reason: str = "", /, **args: Any) -> Rule:
    """Give calls this result without running them."""
    pack(value)
    return _rule("answer", tool, reason, args, value)


def gt(than: Number) -> Bound:
    """More than a number."""
    return _bound("gt", than)


def lt(than: Number) -> Bound:
    """Less than a number."""
    return _bound("lt", than)


def judge(rules: Iterable[Rule], tool: str, args: Mapping[str, Any]) -> Rule | None:
    """The rule that decides a call: the first that matches, block before deny before ask before answer before allow."""
    matching = [rule for rule in rules if rule.matches(tool, args)]
    return min(matching, key=_rank, default=None)


def _rank(rule: Rule) -> int:
    return ORDER.index(rule.kind)


def _rule(kind: VerdictKind, tool: object, reason: object, args: dict[str, Any], value: Any = None) -> Rule:
    if not isinstance(tool, str) or not tool:
        raise UsageError(f"policy.{kind}({tool!r}): the first argument is a pattern of tool names, as in 'read_*'")
    if not isinstance(reason, str):
        raise UsageError(f"policy.{kind}({tool!r}): the reason is text, not {reason!r}; arguments are named")
    for name, wanted in args.items():
        if callable(wanted):
            raise UsageError(
                f"policy.{kind}({tool!r}): {name}= is a function: a rule is data, put it in policy=[…] alone"
            )
        if not isinstance(wanted, Bound):
            pack(wanted)
    return Rule(kind, reason, value, tool, args)


def _bound(how: str, than: object) -> Bound:
    if isinstance(than, bool) or not isinstance(than, int | float | Decimal) or than != than:  # noqa: PLR0124
        raise UsageError(f"policy.{how}({than!r}): give a number")
    return Bound(how, than)


def _matches(wanted: object, value: object) -> bool:
    match wanted:
        case Bound():
            return wanted.matches(value)
        case str():
            return fnmatchcase(_text(value), wanted)
        case bool() | None:
            return value is wanted
        case _:
            return not isinstance(value, bool) and value == wanted


def _text(value: object) -> str:
    """An argument as a pattern sees it: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return str(value)
    try:
        return canonical(pack(value)).decode()
    except UsageError:
        return str(value)


def _number(value: object) -> Decimal | None:
    """A number, also one that a model wrote as text; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return None if number.is_nan() else number


def _quoted(text: str) -> str:
    return canonical(text).decode()


def _spoken(value: object) -> str:
    match value:
        case Bound() | Decimal():
            return str(value)
        case str():
            return _quoted(value)
        case bool() | None:
            return str(value)
        case _:
            return canonical(pack(value)).decode()
