"""How a run ends: exactly one of these, with a string form that can be read back."""

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from clew.core.records import wire_name


class _End(Struct, frozen=True, omit_defaults=True, tag_field="kind", rename=wire_name):
    pass


class Completed(_End, frozen=True, tag="completed"):
    """The model gave its final answer."""

    kind: ClassVar[Literal["completed"]] = "completed"

    def __str__(self) -> str:
        return "natural"


class Requested(_End, frozen=True, tag="requested"):
    """A tool or middleware asked for the end."""

    kind: ClassVar[Literal["requested"]] = "requested"

    def __str__(self) -> str:
        return "behavior_requested"


class Stopped(_End, frozen=True, tag="stopped"):
    """A limit or stop condition was reached."""

    kind: ClassVar[Literal["stopped"]] = "stopped"
    code: str
    detail: str = ""

    def __str__(self) -> str:
        return f"stopped:{self.code}"


class Blocked(_End, frozen=True, tag="blocked"):
    """Policy forbade going on."""

    kind: ClassVar[Literal["blocked"]] = "blocked"
    reason: str = ""

    def __str__(self) -> str:
        return f"blocked:{self.reason}"


class Cancelled(_End, frozen=True, tag="cancelled"):
    """Somebody cancelled the run."""

    kind: ClassVar[Literal["cancelled"]] = "cancelled"
    by: str | None = None
    reason: str = ""

    def __str__(self) -> str:
        return "cancelled"


class Failed(_End, frozen=True, tag="failed"):
    """The run could not go on."""

    kind: ClassVar[Literal["failed"]] = "failed"
    class_: str = ""
    message: str = ""

    def __str__(self) -> str:
        return "error"


Outcome: TypeAlias = Completed | Requested | Stopped | Blocked | Cancelled | Failed


def detail_of(outcome: Outcome) -> str:
    """What the string form leaves out, for people."""
    match outcome:
        case Stopped(detail=detail):
            return detail
        case Blocked(reason=reason) | Cancelled(reason=reason):
            return reason
        case Failed(class_=class_, message=message):
            return f"{class_}: {message}" if message else class_
        case _:
            return ""


def parse_outcome(text: str, detail: str = "") -> Outcome:
    """The outcome that has this string form. Raises ValueError for text that is none."""
    match text.partition(":"):
        case ("natural", "", ""):
            return Completed()
        case ("behavior_requested", "", ""):
            return Requested()
        case ("stopped", ":", code) if code:
            return Stopped(code, detail)
        case ("blocked", ":", reason):
            return Blocked(reason)
        case ("cancelled", "", ""):
            return Cancelled(reason=detail)
        case ("error", "", ""):
            class_, _, message = detail.partition(": ")
            return Failed(class_, message)
        case _:
            raise ValueError(f"{text!r} is no outcome")
