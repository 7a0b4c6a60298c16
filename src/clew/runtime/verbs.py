"""What the running body of a tool may ask of the runtime: steps, questions, sleeps, notes, state."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from msgspec import Struct
from msgspec.structs import replace

from clew.agent import NoVerbs, Question, StateKey
from clew.agent.schema import adapter, dumper, json_schema, problems
from clew.agent.shapes import LONGEST, Duration, in_seconds
from clew.core import entries as e
from clew.core.calls import STEP_MISMATCH, Call
from clew.core.steps import nested_step
from clew.core.tickets import Reject, Respond
from clew.core.values import Digest, check_text, pack, unpack
from clew.errors import Fatal, Rejected, StepFailed, ToolError, UsageError
from clew.runtime.callables import fingerprint, named, returns
from clew.runtime.flight import Done, Flight, Update
from clew.runtime.merging import checked_update, seen_as
from clew.runtime.quiet import all_wait, begin
from clew.runtime.redact import described, name_of, words
from clew.runtime.station import Station
from clew.runtime.user_code import call as call_user
from clew.runtime.values import loaded, stored

if TYPE_CHECKING:
    from clew.core.entries import Entry

LET_GO_AFTER = 1.0  # seconds after which a body lets go, though others of its tasks are at something yet
LOOK_AGAIN = 0.01
DEAD_PAUSE = 0.01  # seconds that a call of a body which has let go takes to be refused: it may be in a loop
LONGEST_PAUSE = 5.0
_NAME = re.compile(r"[^:#!\x00-\x1f\x7f]{1,128}")


class StepCall(Struct, frozen=True):
    """A step as a body asks for it."""

    name: str
    effect: Literal["once", "idempotent"]
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def digest(self) -> Digest:
        return fingerprint(self.args, self.kwargs)


class KeyVerbs(NoVerbs):
    """State to be read, by scope and name: what every other context of user code begins with."""

    def __init__(self, values: Mapping[tuple[str, str], Any], emit: Callable[[object], None] | None = None) -> None:
        super().__init__(emit)
        self._values: dict[tuple[str, str], Any] = dict(values)

    def state_value(self, key: StateKey[Any]) -> Any:
        place = (key.scope, key.name)
        return key.load(self._values[place]) if place in self._values else super().state_value(key)

    def state_has(self, key: StateKey[Any]) -> bool:
        return (key.scope, key.name) in self._values


class BodyVerbs(KeyVerbs):
    """The verbs of one body. What it waits for ends its activation: it is unwound, and runs again when that came."""

    def __init__(
        self,
        station: Station,
        flight: Flight,
        found: Call,
        *,
        values: Mapping[tuple[str, str], Any],
        is_async: bool,
        emit: Callable[[object], None],
    ) -> None:
        super().__init__(values, emit)
        self._station = station
        self._flight = flight
        self._call = found
        self._is_async = is_async
        self._uses: dict[str, int] = {}
        self._running: set[str] = set()
        self._standing: list[Entry] = []
        self._tickets = 0
        self._busy = 0
        self._waiting: set[asyncio.Task[Any]] = set()
        self._before: frozenset[asyncio.Task[Any]] = begin(self) if is_async else frozenset()
        self._settling: asyncio.Task[None] | None = None
        self._leaving = False
        self._returned = False
        self._pause = DEAD_PAUSE
        self.updates: list[Update] = []
        self.ended = False

    @property
    def letting_go(self) -> bool:  # type: ignore[override]
        return self._flight.let_go and self._flight.instead is None

    @property
    def leaving(self) -> bool:
        """Whether what the body stands at is being written down."""
        return self._leaving

    # --- whether anything may be asked

    def _check(self, verb: str) -> None:
        if not self._is_async:
            raise UsageError(
                f"{verb} needs an async tool: write `async def`, for a sync body cannot be unwound to wait"
            )

    async def _refuse_if_over(self) -> None:
        """Nothing that a body says counts once it was asked to leave; and it must not spin while it refuses to."""
        if not (self._flight.stopping or self._leaving):
            return
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        raise asyncio.CancelledError("this activation of the tool is over: its body is unwound")

    def _place(self, name: object) -> str:
        """The step of the next use of a name."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot name a step: use 1 to 128 characters without ':', '#', '!' and controls")
        check_text(name)
        self._uses[name] = use = self._uses.get(name, 0) + 1
        return nested_step(self._call.id, name, use)

    # --- steps

    def step(
        self,
        name: str,
        effect: Literal["once", "idempotent"],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Awaitable[Any]:
        self._check("ctx.step" if effect == "idempotent" else "ctx.once_step")
        return self._step(StepCall(name, effect, fn, args, kwargs))

    async def _step(self, asked: StepCall) -> Any:
        await self._refuse_if_over()
        if not callable(asked.fn):
            raise UsageError(f"step {asked.name!r}: {asked.fn!r} is no function: say ctx.step(name, function, *args)")
        if asked.name in self._running:
            raise UsageError(f"step {asked.name!r} is running already: give the other one another name")
        step = self._place(asked.name)
        recorded = self._call.recorded(step)
        if recorded is not None:
            if (recorded.fn, recorded.args_digest) != (named(asked.fn), asked.digest):
                await self._mismatch(recorded, asked.fn)
            return await self._read_back(recorded, asked.fn)
        self._running.add(asked.name)
        self._busy += 1
        try:
            return await self._perform(step, asked)
        finally:
            self._busy -= 1
            self._running.discard(asked.name)

    async def _perform(self, step: str, asked: StepCall) -> Any:
        if asked.effect == "once":
            begun = e.StepStarted(
                step=step,
                call=self._call.id,
                name=asked.name,
                effect=asked.effect,
                fn=named(asked.fn),
                args_digest=asked.digest,
            )
            await self._flight.tell(begun)
        blobs: dict[Digest, bytes] = {}
        try:
            value = await call_user(asked.fn, *asked.args, **asked.kwargs)
        except Exception as error:
            if asked.effect == "once":
                # It may have happened: it is not run again, and whoever runs the body again hears the same.
                await self._flight.tell(self._record(step, asked, error=_told(error)))
            raise
        hint = returns(asked.fn)
        try:
            data = dumper(hint)(value)
            record = self._record(step, asked, value=stored(data, blobs))
        except (ValueError, UsageError) as error:
            raise UsageError(f"step {asked.name!r} returned what cannot be stored as JSON: {error}") from error
        await self._flight.tell(record, blobs=blobs)
        return _as_hinted(asked.name, hint, data)

    def _record(
        self, step: str, asked: StepCall, *, value: Any = None, error: e.StepError | None = None
    ) -> e.StepRecorded:
        return e.StepRecorded(
            step=step,
            call=self._call.id,
            name=asked.name,
            effect=asked.effect,
            fn=named(asked.fn),
            args_digest=asked.digest,
            value=value,
            error=error,
        )

    async def _read_back(self, recorded: e.StepRecorded, fn: Callable[..., Any]) -> Any:
        if recorded.error is not None:
            told = f"step {recorded.name!r} failed before: {recorded.error.message}"
            raise ToolError(told) if recorded.error.class_ in ("ToolError", "not_done") else StepFailed(told)
        return _as_hinted(recorded.name, returns(fn), await loaded(recorded.value, self._station.store))

    async def _mismatch(self, recorded: e.StepRecorded, fn: Callable[..., Any]) -> NoReturn:
        """Another function or other arguments: nobody knows any more what the body has done."""
        told = (
            f"step {recorded.name!r} was recorded for {recorded.fn or 'another function'}, and is now {named(fn)} "
            "or has other arguments: the tool has changed since it began"
        )
        failed = e.ToolFailed(
            step=self._call.id,
            attempt=self._call.attempt,
            call=self._call.id,
            class_=STEP_MISMATCH,
            message=told,
            final=False,
            source="doubt",
        )
        self._flight.leave(Done((failed,)))
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    # --- waits

    def ask(self, question: Question) -> Awaitable[Any]:
        self._check("ctx.ask")
        return self._ask(question)

    async def _ask(self, question: Question) -> Any:
        await self._refuse_if_over()
        prompt = _prompt(question.prompt)
        name = question.name or "ask-" + sha256(prompt.encode()).hexdigest()[:12]
        step = self._place(name)
        wait = self._call.wait(step)
        if wait is not None and isinstance(wait.opened, e.TicketOpened):
            if wait.closed is None:
                return await self._stand(wait.opened)
            return await self._answer(question, wait.closed)
        expires = in_seconds(question.expires, "ctx.ask: expires")
        return await self._stand(
            e.TicketOpened(
                step=step,
                ticket=self._next_ticket(),
                ticket_kind="question",
                call=self._call.id,
                action=f"tool:{self._call.tool}",
                prompt=prompt,
                schema=_schema(question.schema),
                reason=question.name or "",
                expires_at=None if expires is None else self._station.store.now() + int(expires * 1_000_000),
                on_expire=question.on_expire,
            )
        )

    def _next_ticket(self) -> str:
        self._tickets += 1
        known = {wait.opened.ticket for wait in self._call.waits if isinstance(wait.opened, e.TicketOpened)}
        number = len(known) + self._tickets
        return self._call.id if number == 1 else f"{self._call.id}~{number}"

    async def _answer(self, question: Question, closed: object) -> Any:
        match closed:
            case e.DecisionMade(decision=Respond(value=value)):
                data = await loaded(value, self._station.store)
                if isinstance(question.schema, Mapping):
                    return data
                try:
                    return adapter(question.schema).validate_python(data)
                except ValueError as error:
                    raise Rejected(f"the answer does not fit what was asked: {problems(error)}") from error
            case e.DecisionMade(decision=Reject(message=message)):
                raise Rejected(message or "the question was turned down")
            case _:
                raise Rejected("nobody answered in time")

    def sleep(self, duration: Duration) -> Awaitable[None]:
        self._check("ctx.sleep")
        return self._sleep(duration)

    async def _sleep(self, duration: Duration) -> None:
        await self._refuse_if_over()
        seconds = _seconds(duration)
        if not 0 <= seconds <= LONGEST:
            raise UsageError(f"ctx.sleep({duration!r}): give seconds or a timedelta, from zero to a hundred years")
        step = self._place("sleep")
        wait = self._call.wait(step)
        if wait is not None and wait.closed is not None:
            return
        if wait is not None and isinstance(wait.opened, e.TimerSet):
            await self._stand(wait.opened)
        due = self._station.store.now() + int(seconds * 1_000_000)
        await self._stand(e.TimerSet(step=step, timer=step, due=due, why="sleep"))

    async def _stand(self, entry: e.TicketOpened | e.TimerSet) -> NoReturn:
        """Wait for ever: the body is unwound before this comes, and finds it there when it runs again."""
        self._standing.append(entry)
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        if self._settling is None:
            self._settling = self._station.spawn(self._let_go(), f"let go {self._call.id}")
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def _let_go(self) -> None:
        """Once all its tasks wait, what the body stands at is committed together, and then the body leaves."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LET_GO_AFTER
        await asyncio.sleep(0)
        # A step in flight is not cut off: it would be in doubt.
        while not self._is_over and (self._busy or (loop.time() < until and not self._all_wait())):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_AGAIN)
        if self._is_over:
            return
        self._leaving = True
        await self._flight.tell(*[replace(entry) for entry in self._standing])
        if self._returned:
            self._flight.let_go = True
        else:
            self._flight.leave()

    async def over(self) -> None:
        """The body has returned or raised. Once it is being written down that it waits, that comes first."""
        self._returned = True
        if self._leaving and self._settling is not None:
            await asyncio.shield(self._settling)

    @property
    def _is_over(self) -> bool:
        return self._flight.stopping or self._returned

    def _all_wait(self) -> bool:
        ours = {self._flight.task, self._settling, *self._waiting}
        return all_wait(self, self._before, ours, self._station.tasks)

    # --- remarks and state

    def note(self, kind: str, value: Any) -> Awaitable[None]:
        self._check("ctx.note")
        return self._note(kind, value)

    async def _note(self, kind: object, value: object) -> None:
        await self._refuse_if_over()
        blobs: dict[Digest, bytes] = {}
        noted = noted_as(self._call.id, kind, value, blobs)
        self._busy += 1
        try:
            await self._flight.tell(noted, blobs=blobs)
        finally:
            self._busy -= 1

    def state_update(self, key: StateKey[Any], value: Any) -> None:
        update = checked_update(key, value)
        self._values[key.scope, key.name] = seen_as(key, self._values, unpack(update.value))
        self.updates.append(update)

    def end(self) -> None:
        self.ended = True


def _told(error: Exception) -> e.StepError:
    if isinstance(error, ToolError | Fatal):
        return e.StepError("ToolError" if isinstance(error, ToolError) else "Fatal", words(error))
    return e.StepError(name_of(error), described(error))


def _as_hinted(name: str, hint: Any, data: Any) -> Any:
    """A value by its function's return hint: the same whether it was just made or read back."""
    try:
        return adapter(hint).validate_python(data)
    except ValueError as error:
        raise UsageError(
            f"step {name!r}: its value does not fit its function's return hint: {problems(error)}"
        ) from error
    except UsageError:
        return data


def noted_as(step: str | None, kind: object, value: object, blobs: dict[Digest, bytes]) -> e.Noted:
    if not isinstance(kind, str) or not kind:
        raise UsageError(f"ctx.note({kind!r}, …): the kind of a note is text")
    return e.Noted(step=step, note_kind=check_text(kind), value=stored(value, blobs))


def _prompt(asked: object) -> str:
    if not isinstance(asked, str) or not asked.strip():
        raise UsageError(f"ctx.ask({asked!r}): say what is asked, as text")
    return check_text(asked)


def _seconds(duration: object) -> float:
    match duration:
        case bool():
            return math.nan
        case int() | float():
            return duration
        case timedelta():
            return duration.total_seconds()
        case _:
            return math.nan


def _schema(asked: Any) -> dict[str, Any]:
    """The JSON schema of an answer."""
    if isinstance(asked, Mapping):
        return dict(pack(cast("Mapping[str, Any]", asked)))
    return {"type": "string"} if asked is str else json_schema(adapter(asked))
