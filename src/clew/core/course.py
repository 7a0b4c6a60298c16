"""How a run has gone, as far as rules look back on it: what keeps failing, what repeats, who wrote which key."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from clew.core import entries as e
from clew.core.calls import Wait
from clew.core.outcomes import Stopped
from clew.core.values import Digest, Value, digest

# Failures that say nothing of the tool: it was not asked, or what the model asked for was no call of it.
_NOT_THE_TOOLS = frozenset({"cancelled", "superseded", "policy", "decision", "middleware", "invalid"})


class Writes(Struct, frozen=True, gc=False):
    """A state key within one turn: its value before, and what each call gave, by call."""

    before: Value
    existed: bool
    given: dict[str, Value]


class Course(Struct, frozen=True, kw_only=True, gc=False):
    failing: Mapping[str, int] = {}  # by tool: failures since its last success
    stop: Stopped | None = None  # a tool or a text that ends the run was seen
    failed: e.ToolFailed | None = None  # the last failure of a tool, or the one after which the run is to stop
    recent: tuple[Digest, ...] = ()  # the last replies, where somebody counts them
    hooked: str = ""  # the last boundary whose hooks have run
    limits_asked: int = 0
    limit: Wait | None = None  # the question whether the run may go on beyond a limit
    writes: Mapping[tuple[str, str], Writes] = {}  # of this turn, by scope and key


def succeeded(course: Course, tool: str) -> Course:
    if tool not in course.failing:
        return course
    return replace(course, failing={name: count for name, count in course.failing.items() if name != tool})


def failed(course: Course, tool: str, entry: e.ToolFailed) -> Course:
    """The final failure of a call."""
    if course.failed is not None and course.failed.stop:
        return course
    if entry.source in _NOT_THE_TOOLS and not entry.stop:
        return course
    return replace(course, failed=entry, failing={**course.failing, tool: course.failing.get(tool, 0) + 1})


def replied(course: Course, entry: e.ModelReplied, said: str, window: int | None) -> Course:
    """A new turn: keys have no writers yet. `window` is how many replies are remembered, if any.

    `said` is all of its words: what takes a reply up again that was cut off is one with it.
    """
    if window is None:
        return replace(course, writes={}) if course.writes else course
    calls = [[call.tool, call.args_text] for call in entry.calls]
    before = course.recent[:-1] if entry.continues else course.recent
    return replace(course, writes={}, recent=(*before, digest([said, calls]))[-window:])


def wrote(course: Course, known: Mapping[str, Mapping[str, Value]], call: str, ops: tuple[e.Op, ...]) -> Course:
    """Who gave what to the keys that are set as a whole; sums and appended items need no order."""
    writes = dict(course.writes)
    for op in ops:
        if op.op == "set":
            place = (op.scope, op.key)
            values = known[op.scope]
            before = writes.get(place) or Writes(values.get(op.key), op.key in values, {})
            given = op.given[0] if op.given else op.value
            writes[place] = Writes(before.before, before.existed, {**before.given, call: given})
    return replace(course, writes=writes)
