"""What may be asked of the world, in the imperative: the shell performs these and answers with facts."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from clew.core.entries import Entry, RunFinished


class CallModel(Struct, frozen=True, gc=False):
    """Ask the model for the next reply, not before `not_before`. `ordinal` counts the answers and failures so far.

    `continues`: the step whose words were cut off, and are taken up again.
    """

    step: str
    attempt: int = 1
    ordinal: int = 0
    not_before: int | None = None
    continues: str | None = None


class CallTool(Struct, frozen=True, gc=False):
    """Run the body of a call. Its intent, if it needs one, is committed."""

    step: str
    attempt: int = 1
    not_before: int | None = None


class Record(Struct, frozen=True, gc=False):
    """No outside work: write this down, in the commit of what led to it, or not before its time has come."""

    entry: Entry
    not_before: int | None = None


class Judge(Struct, frozen=True, gc=False):
    """Ask policy and middleware of a call. `again`: its arguments were edited, only what forbids counts now."""

    step: str
    again: bool = False


class Verify(Struct, frozen=True, gc=False):
    """Ask the tool what became of a call, or of the step inside of it, that nobody saw end."""

    step: str
    subject: str
    not_before: int | None = None


class RunHooks(Struct, frozen=True, gc=False):
    """Let middleware see a boundary. `step` is the mark that it leaves, where that is a fact."""

    step: str
    hook: Literal["on_attach", "on_input", "on_turn_end"]


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


class Here(Struct, frozen=True, gc=False):
    """What this process knows and no journal says: it is handed to the rules beside the state.

    `allowed`: calls that were judged here and simply pass. `hooked`: boundaries without a mark that were passed here.
    `patience`: until when a doubt of a call has to wait, since whoever started it may live.
    """

    allowed: frozenset[str] = frozenset()
    hooked: frozenset[str] = frozenset()
    patience: Mapping[str, int] = {}


NOWHERE = Here()

Effect: TypeAlias = CallModel | CallTool | Judge | Verify | RunHooks | Record | CheckOutput | Await | Close | Finish
