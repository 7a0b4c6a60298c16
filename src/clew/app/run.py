"""A run and a thread, as their caller holds them: a name, and the verbs that take it."""

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from typing_extensions import TypeVar

from clew.agent import Agent, NoVerbs, StateKey
from clew.app.result import Queued, Result
from clew.core.deltas import Delta, ResetDelta, TextDelta
from clew.core.entries import Entry, ModelReplied
from clew.core.messages import Message
from clew.core.snapshots import Snapshot
from clew.core.tickets import Decision, Ticket
from clew.core.values import Value
from clew.errors import NotFound, Unsupported
from clew.ports import RunInfo, Store
from clew.runtime.plan import Input
from clew.runtime.values import loaded

if TYPE_CHECKING:
    from clew.app.runtime import Runtime

_Out_co = TypeVar("_Out_co", covariant=True, default=Any)
_T = TypeVar("_T")
Until = Literal["settled", "done"]
_FORKS = " comes with the release on threads and forks: this version of Clew does not have it yet"


class Run(Generic[_Out_co]):
    """A handle on a run; holding it holds nothing else."""

    def __init__(
        self, runtime: "Runtime", run_id: str, thread_id: str, agent: "Agent[Any, Any] | None", name: str
    ) -> None:
        self._runtime = runtime
        self._agent = agent
        self.id = run_id
        self.thread_id = thread_id
        self.agent = name

    def __repr__(self) -> str:
        return f"<Run {self.id} of agent {self.agent!r}>"

    async def result(self, *, until: Until = "settled", timeout: float | timedelta | None = None) -> Result[_Out_co]:
        """What the run came to, once it has settled; after `timeout` what it is by then.

        Raises JournalCorrupt for a quarantined run. `until="done"` goes on through waits.
        """
        return await self._runtime.result_of(self.id, self._agent, until=until, timeout=timeout)

    @overload
    def watch(self, after: int = 0, *, until: Until = "done") -> AsyncIterator[Entry | Delta]: ...
    @overload
    def watch(
        self, after: int = 0, *, until: Until = "done", snapshot: bool
    ) -> AsyncIterator[Entry | Delta | Snapshot]: ...
    def watch(
        self, after: int = 0, *, until: Until = "done", snapshot: bool = False
    ) -> AsyncIterator[Entry | Delta | Snapshot]:
        """The entries of this run after `after`, then what comes, with the fragments of what is being said.

        With `snapshot`, first one Snapshot of the conversation as of some entry, then what comes after that entry.
        """
        return self._runtime.watch_run(self.id, after, until=until, snapshot=snapshot)

    async def text(self) -> AsyncIterator[str]:
        """The words of the run as they come, until it settles; what is joined here is what the journal holds."""
        said: dict[str, int] = {}
        async for item in self.watch(until="settled"):
            match item:
                case TextDelta(step=step, text=text):
                    said[step] = said.get(step, 0) + len(text)
                    yield text
                case ResetDelta(step=step):
                    said[step] = 0  # what was said before was void; a plain text cannot take it back
                case ModelReplied(step=step) if step is not None:
                    rest = item.text[said.pop(step, 0) :]
                    if rest:
                        yield rest
                case _:
                    pass

    async def entries(self, after: int = 0) -> list[Entry]:
        return await self._runtime.opened.read(self.id, after=after)

    async def messages(self) -> list[Message]:
        """The whole conversation up to now, that of the bases included."""
        return list((await self._runtime.state_of(self.id)).transcript)

    async def info(self) -> RunInfo:
        return await self._runtime.opened.info(self.id)

    @overload
    async def state(self) -> Mapping[str, Any]: ...
    @overload
    async def state(self, key: StateKey[_T]) -> _T: ...
    async def state(self, key: StateKey[Any] | None = None) -> Any:
        """The state keys of the run and its thread, or the value of one."""
        state = await self._runtime.state_of(self.id)
        store = self._runtime.opened
        if key is None:
            known = {**state.thread_state, **state.run_state}
            return {name: await loaded(value, store) for name, value in known.items()}
        return await _value(key, state.run_state if key.scope == "run" else state.thread_state, store)

    async def send(
        self, input: Input, *, when: Literal["asap", "idle"] = "asap", message_id: str | None = None
    ) -> Queued:
        return await self._runtime.send(self.id, input, when=when, message_id=message_id)

    async def decide(
        self, ticket: Ticket | str, decision: Decision, *, by: str | None = None, decision_id: str | None = None
    ) -> Ticket:
        return await self._runtime.decide(ticket, decision, run_id=self.id, by=by, decision_id=decision_id)

    async def cancel(self, *, reason: str = "", by: str | None = None) -> None:
        await self._runtime.cancel(self.id, reason=reason, by=by)


class Thread:
    """A named conversation: a pointer to its head run."""

    def __init__(self, runtime: "Runtime", thread_id: str) -> None:
        self._runtime = runtime
        self.id = thread_id

    def __repr__(self) -> str:
        return f"<Thread {self.id}>"

    async def _head(self) -> str:
        found = await self._runtime.opened.thread(self.id)
        if found is None or found.head is None:
            raise NotFound(f"there is no thread {self.id!r}: start(…, thread_id={self.id!r}) makes it")
        return found.head

    async def messages(self) -> list[Message]:
        return list((await self._runtime.state_of(await self._head())).transcript)

    async def runs(self) -> list[RunInfo]:
        """The runs of the thread, newest first."""
        return [info async for info in self._runtime.runs(thread_id=self.id)]

    async def rename(self, name: str) -> None:  # noqa: ARG002
        raise Unsupported(f"Thread.rename{_FORKS}")

    async def branch(self, name: str) -> "Thread":  # noqa: ARG002
        raise Unsupported(f"Thread.branch{_FORKS}")

    async def edit(self, message_id: str, input: Input) -> Run[Any]:  # noqa: ARG002
        raise Unsupported(f"Thread.edit{_FORKS}")

    async def regenerate(self) -> Run[Any]:
        raise Unsupported(f"Thread.regenerate{_FORKS}")

    async def queue(self) -> tuple[str, ...]:
        """The runs that wait for their turn, in order."""
        await self._head()
        found = await self._runtime.opened.thread(self.id)
        return () if found is None else found.queue

    async def state(self, key: StateKey[_T]) -> _T:
        values = (await self._runtime.state_of(await self._head())).thread_state
        return await _value(key, values, self._runtime.opened)


async def _value(key: StateKey[_T], values: Mapping[str, Value], store: Store) -> _T:
    """Raises UsageError for a key without value and default."""
    if key.name not in values:
        default: _T = NoVerbs().state_value(key)
        return default
    return key.load(await loaded(values[key.name], store))
