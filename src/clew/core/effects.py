"""What may be asked of the world, in the imperative: the shell performs these and answers with facts."""

from typing import TypeAlias

from msgspec import Struct

from clew.core.entries import Entry, RunFinished


class CallModel(Struct, frozen=True, gc=False):
    """Ask the model for the next reply, not before `not_before`. `ordinal` counts the answers and failures so far."""

    step: str
    attempt: int = 1
    ordinal: int = 0
    not_before: int | None = None


class CallTool(Struct, frozen=True, gc=False):
    """Run the body of a call. Its intent, if it needs one, is committed."""

    step: str
    attempt: int = 1
    not_before: int | None = None


class Record(Struct, frozen=True, gc=False):
    """No outside work: write this down, in the commit of what led to it, or not before its time has come."""

    entry: Entry
    not_before: int | None = None


class CheckOutput(Struct, frozen=True, gc=False):
    """Hold the final answer against the agent's output type: user code, so what it says becomes a fact."""

    step: str
    text: str


class Await(Struct, frozen=True, gc=False):
    """If this step is being performed, let it end; do not start it."""

    step: str


class Close(Struct, frozen=True, gc=False):
    """This step must not start any more: once nobody performs it, write the entry down, unless its own came first."""

    step: str
    entry: Entry
    interrupt: bool = False


class Finish(Struct, frozen=True, gc=False):
    """End the run, once nothing is being performed and no letter is unread."""

    entry: RunFinished


Effect: TypeAlias = CallModel | CallTool | Record | CheckOutput | Await | Close | Finish
