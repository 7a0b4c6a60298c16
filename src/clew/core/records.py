"""What entries are made of: groups of their fields, and the closed sets of words in them."""

from typing import Literal, TypeAlias

from msgspec import Struct

from clew.core.values import Digest, Value


def wire_name(field: str) -> str:
    """The name on the wire of a field that is a Python keyword."""
    return field.rstrip("_")


class _Record(Struct, frozen=True, omit_defaults=True, rename=wire_name, gc=False):
    """A group of fields inside an entry."""


class BaseAt(_Record, frozen=True, tag="at", tag_field="kind"):
    """The run goes on from a position in another run's journal."""

    run: str
    seq: int


class BaseThread(_Record, frozen=True, tag="thread", tag_field="kind"):
    """The run goes on from wherever its thread will be when its turn comes."""


class BaseSnapshot(_Record, frozen=True, tag="snapshot", tag_field="kind"):
    """The run goes on from a folded state stored as a blob; written by prune, import and export only."""

    blob: Value


Base: TypeAlias = BaseAt | BaseThread | BaseSnapshot
Origin = Literal["user", "child", "fork", "replay", "background", "remote", "import"]
Finish = Literal["stop", "tool_calls", "length", "filter", "cut_off"]
VerdictKind = Literal["allow", "ask", "deny", "answer", "block"]
Source = Literal[
    "ran",
    "recorded",
    "decision",
    "policy",
    "verify",
    "superseded",
    "late",
    "dry",
    "cancelled",
    "invalid",
    "doubt",
    "middleware",
]


class Parent(_Record, frozen=True):
    run: str
    thread: str = ""
    step: str = ""


class Trace(_Record, frozen=True, kw_only=True):
    dispatch_id: str | None = None
    session_id: str | None = None
    request_id: str | None = None


class Recording(_Record, frozen=True, kw_only=True):
    """Where a replay takes its results from: the calls of `run` after `seq` up to `until`."""

    run: str
    seq: int
    until: int = 0
    modes: dict[str, str] = {}
    on_miss: str = "ask"


class Owner(_Record, frozen=True):
    """A process, told apart from every other that ever ran on the host; `instance` tells its Runtimes apart."""

    host: str
    boot: str
    pid: int
    start: int
    instance: int = 0


class RequestMade(_Record, frozen=True, kw_only=True):
    """What the model was sent: a digest where it is not simply what the journal shows, the counts always."""

    digest: Digest = ""
    model: str = ""
    settings: dict[str, Value] = {}
    messages: int = 0
    tools: int = 0
    blob: Value = None


class Op(_Record, frozen=True, kw_only=True):
    """One change of a state key. `writers` names the calls whose values were merged, `given` what this one gave."""

    op: Literal["set", "add", "append", "remove"]
    key: str
    scope: Literal["run", "thread"] = "run"
    value: Value = None
    writers: tuple[str, ...] = ()
    given: tuple[Value, ...] = ()  # at most one; nothing if it is the value itself


class StepError(_Record, frozen=True):
    class_: str
    message: str = ""


class Output(_Record, frozen=True, kw_only=True):
    text: str | None = None
    value: Value = None
    artifacts: tuple[Value, ...] = ()
    raw: Value = None
