"""What a run came to, as its caller sees it."""

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

import msgspec
from typing_extensions import TypeVar

from clew.core.messages import Message, Usage, text_of
from clew.core.outcomes import Completed, Outcome, Requested, detail_of
from clew.core.state import State
from clew.core.tickets import Ticket
from clew.errors import RunFailed, RunWaiting

if TYPE_CHECKING:
    from clew.core.entries import RunFinished

_Out_co = TypeVar("_Out_co", covariant=True, default=Any)

_SHOWN = 60


class Result(Generic[_Out_co]):
    """A settled run: done, or waiting for somebody outside. `.ok` says whether there is an output."""

    def __init__(
        self, state: State, *, output: object = None, reasons: tuple[str, ...] = (), tickets: tuple[Ticket, ...] = ()
    ) -> None:
        self._state = state
        self._output = output
        self._reasons = reasons
        self.tickets = tickets

    @property
    def run_id(self) -> str:
        return self._state.run

    @property
    def thread_id(self) -> str:
        started = self._state.started
        return self.run_id if started is None or started.thread is None else started.thread

    @property
    def status(self) -> Literal["done", "waiting"]:
        return "waiting" if self._state.finished is None else "done"

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended, in typed form; None while it waits."""
        return self._state.outcome

    @property
    def reason(self) -> str:
        """How the run ended, or the first of the reasons why it waits."""
        outcome = self.outcome
        return str(outcome) if outcome is not None else self._reasons[0] if self._reasons else "external"

    @property
    def detail(self) -> str:
        return "" if self.outcome is None else detail_of(self.outcome)

    @property
    def ok(self) -> bool:
        return isinstance(self.outcome, Completed | Requested)

    @property
    def output(self) -> _Out_co:
        """The output. Raises RunWaiting or RunFailed if there is none."""
        self.raise_for_reason()
        return self._output  # type: ignore[return-value]  # loaded by the agent that declares the type

    @property
    def text(self) -> str:
        """The last words of the run, whatever became of it."""
        finished: RunFinished | None = self._state.finished
        if finished is not None and finished.output.text is not None:
            return finished.output.text
        transcript = self._state.transcript
        for place in range(len(transcript) - 1, self._state.base_length - 1, -1):
            message = transcript[place]
            if message.role == "assistant" and (text := text_of(message.parts)):
                return text
        return ""

    @property
    def usage(self) -> Usage:
        return self._state.usage

    @property
    def cost(self) -> Decimal | None:
        """US dollars; None if no price is known."""
        return self._state.cost

    @property
    def turns(self) -> int:
        return self._state.turn - self._state.first_turn

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation, that of the bases included."""
        return tuple(self._state.transcript)

    def raise_for_reason(self) -> Self:
        """Itself if there is an output; else RunWaiting or RunFailed."""
        if self.ok:
            return self
        if self.status == "waiting":
            raise RunWaiting(
                f"run {self.run_id!r} waits ({self.reason}): it has no output yet",
                reason=self.reason,
                detail=self.detail,
            )
        what = f"{self.reason}: {self.detail}" if self.detail else self.reason
        raise RunFailed(f"run {self.run_id!r} has no output ({what})", reason=self.reason, detail=self.detail)

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "…"
        return f"<Result {self.run_id} {self.status} ({self.reason}) turns={self.turns} {shown!r}>"


class Diff(msgspec.Struct, frozen=True):
    """How two runs differ, turn by turn. Comes with forks."""

    same: bool
    first: int | None = None
    turns: tuple[Any, ...] = ()


class Pruned(msgspec.Struct, frozen=True):
    runs: int
    bytes: int = 0


class Finding(msgspec.Struct, frozen=True):
    run_id: str
    verdict: Literal["compatible", "degraded", "blocked"]
    why: str


class Queued(msgspec.Struct, frozen=True):
    """A message on its way into a run."""

    id: str
    run_id: str
    text: str = ""
