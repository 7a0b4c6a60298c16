"""Runs the body of a tool once, and makes a fact of whatever it does: return, raise, hang, let go, or be cut off."""

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from msgspec.structs import replace

from clew.agent import Tool, ToolContext, ToolOutput
from clew.core import entries as e
from clew.core.effects import CallTool
from clew.core.proceeding import arguments
from clew.core.spec import ToolSpec
from clew.core.state import Call, State
from clew.core.steps import backoff
from clew.core.values import Digest, unpack
from clew.errors import Fatal, ToolError
from clew.runtime.asking import complaint
from clew.runtime.flight import Done, Flight, Update
from clew.runtime.hooks import Hooks
from clew.runtime.merging import checked_update
from clew.runtime.redact import described, name_of, words
from clew.runtime.station import Station
from clew.runtime.user_code import NeverBegan, Raised, Returned, attempt, attempt_sync
from clew.runtime.values import TooLarge, stored
from clew.runtime.verbs import BodyVerbs

SECOND = 1_000_000
SWALLOWED_AFTER = 1.0  # seconds that a body has to end once its time is over
NOTHING: Returned[tuple[Update, ...]] = Returned(())


class Body:
    """One attempt at one call."""

    def __init__(self, station: Station, flight: Flight, state: State, found: Call, hooks: Hooks) -> None:
        assert isinstance(flight.effect, CallTool)
        self._station = station
        self._flight = flight
        self._effect = flight.effect
        self._state = state
        self._call = found
        self._hooks = hooks
        self._blobs: dict[Digest, bytes] = {}
        self._overdue = False  # its time was over, and it did not end

    @property
    def is_unwound(self) -> bool:
        """Whether it was asked to leave."""
        return self._flight.stopping

    async def perform(
        self, tool: Tool[Any, Any, Any] | None, context: ToolContext[Any] | None, ready: dict[str, Any] | None
    ) -> Done:
        """`context` is that of a body which takes one: what the body does through it is in its verbs."""
        declared = self._state.tool_of(self._call)
        if tool is None or declared is None:
            return self._failed("missing_tool", f"the tool {self._call.tool!r} is not there any more", source="invalid")
        checked = Returned(ready) if ready is not None else attempt_sync(tool.validate, unpack(arguments(self._call)))
        if isinstance(checked, Raised):
            return self._failed("invalid_arguments", complaint(checked.error), source="invalid")
        verbs = context.verbs if context is not None and isinstance(context.verbs, BodyVerbs) else None
        begun = monotonic_ns()
        end = self._when_overdue(tool, declared, verbs)
        outcome = await attempt(self._run(tool, declared, context, checked.value))
        end()
        took = (monotonic_ns() - begun) // 1000
        if verbs is not None and not self._flight.stopping:
            await verbs.over()
        if self._flight.let_go:
            if self._overdue:
                self._late(tool, declared, outcome)
            return self._flight.instead or Done()  # whatever it says: it is in the journal that it waits
        if isinstance(outcome, Raised):
            done = self._raised(tool, declared, outcome.error, took)
        elif self._hooks.has("after_tool"):
            done = await self._through_hooks(tool, outcome.value, took, verbs)
        else:
            done = self._returned(tool, outcome.value, took, verbs)
        return await self._hooks.recovered(self._state, self._call, done) if self._hooks.recovers else done

    async def _through_hooks(
        self, tool: Tool[Any, Any, Any], value: object, took: int, verbs: BodyVerbs | None
    ) -> Done:
        """The result as middleware leaves it; one that fails must not let pass what it was there to change."""
        output = value if isinstance(value, ToolOutput) else ToolOutput(value)
        seen = await self._hooks.after_tool(self._state, self._call, output)
        if isinstance(seen, Raised) and self._flight.interrupted and isinstance(seen.error, asyncio.CancelledError):
            return Done()  # as if the process had ended here: it is no failure of the middleware
        if isinstance(seen, Raised):
            told = f"the tool ran, but middleware failed on its result: {described(seen.error)}"
            return self._failed("middleware", told, took=took, source="middleware")
        done = self._returned(tool, seen.value, took, verbs)
        entries = tuple([_rewritten(entry, seen.by) for entry in done.entries])
        return seen.with_facts(replace(done, entries=entries))

    def broken_off(self, tool: Tool[Any, Any, Any] | None, error: BaseException) -> Done:
        """The body was cut off from inside: raised, as any other exception would be."""
        declared = self._state.tool_of(self._call)
        if tool is None or declared is None:
            return self._failed(type(error).__name__, described(error))
        return self._raised(tool, declared, error, 0)

    async def _run(
        self, tool: Tool[Any, Any, Any], declared: ToolSpec, context: object, kwargs: dict[str, Any]
    ) -> object:
        positional = () if context is None else (context,)
        if tool.is_async:
            body = tool.fn(*positional, **kwargs)
        else:
            body = self._station.threads.run(
                lambda: tool.fn(*positional, **kwargs), {}, lambda outcome: self._late(tool, declared, outcome)
            )
        if declared.timeout is None:
            return await body
        async with asyncio.timeout(declared.timeout):
            return await body

    def _when_overdue(
        self, tool: Tool[Any, Any, Any], declared: ToolSpec, verbs: BodyVerbs | None
    ) -> "Callable[[], None]":
        """A body that swallows the end of its time is left behind, as one that does not leave when it is asked to."""
        if declared.timeout is None:
            return lambda: None

        def leave() -> None:
            if self._flight.stopping or (verbs is not None and verbs.leaving):
                return
            self._overdue = True
            done = self._raised(tool, declared, TimeoutError(), int(declared.timeout or 0) * SECOND)
            self._flight.leave(replace(done, until=self._over_at(declared)))

        return asyncio.get_running_loop().call_later(declared.timeout + SWALLOWED_AFTER, leave).cancel

    def _late(self, tool: Tool[Any, Any, Any], declared: ToolSpec, outcome: "Returned[Any] | Raised") -> None:
        """A thread that nobody waits for any more has ended: what it came to is evidence."""
        if isinstance(outcome, Raised):
            self._flight.on_late(self._raised(tool, declared, outcome.error, 0))
        elif self._hooks.has("after_tool"):
            self._station.spawn(self._late_through_hooks(tool, outcome.value), f"late {self._effect.step}")
        else:
            self._flight.on_late(self._returned(tool, outcome.value, 0, None))

    async def _late_through_hooks(self, tool: Tool[Any, Any, Any], value: object) -> None:
        """Middleware that withholds it leaves the call in doubt."""
        self._flight.on_late(await self._through_hooks(tool, value, 0, None))

    def _returned(self, tool: Tool[Any, Any, Any], value: object, took: int, verbs: BodyVerbs | None) -> Done:
        output = value if isinstance(value, ToolOutput) else None
        gave = (verbs is not None and verbs.updates) or (output is not None and output.state)
        updates = attempt_sync(self._updates, output, verbs) if gave else NOTHING
        if isinstance(updates, Raised):
            return self._failed(
                "state", f"the tool ran, but its state is not kept: {described(updates.error)}", took=took
            )
        made = attempt_sync(self._fact, tool, value if output is None else output.content, output, took)
        if isinstance(made, Raised):
            told = f"the tool ran, but what it returned cannot be stored: {described(made.error)}"
            return self._failed("unstorable", told, took=took)
        entry = replace(made.value, end=True) if verbs is not None and verbs.ended else made.value
        return Done((entry,), self._blobs, updates.value)

    def _updates(self, output: ToolOutput | None, verbs: BodyVerbs | None) -> tuple[Update, ...]:
        given = () if output is None or output.state is None else output.state.items()
        own = () if verbs is None else verbs.updates
        return (*own, *[checked_update(key, value) for key, value in given])

    def _fact(self, tool: Tool[Any, Any, Any], content: object, more: ToolOutput | None, took: int) -> e.ToolReturned:
        """The result in journal form. Serialisers are user code, and may raise anything."""
        return e.ToolReturned(
            step=self._effect.step,
            attempt=self._effect.attempt,
            call=self._effect.step,
            content=self._content(tool.dump(content)),
            artifacts=() if more is None else tuple(self._content(tool.dump(item)) for item in more.artifacts),
            metadata={} if more is None else stored(dict(more.metadata), self._blobs),
            end=more is not None and more.end,
            duration=took,
        )

    def _content(self, value: object) -> object:
        try:
            return stored(value, self._blobs)
        except TooLarge as error:
            return f"The tool succeeded, but its value was too large to keep: {error}."

    def _raised(self, tool: Tool[Any, Any, Any], declared: ToolSpec, error: BaseException, took: int) -> Done:
        if isinstance(error, Fatal):
            return self._failed("fatal", words(error) or "a tool ended the run", took=took)
        if isinstance(error, NeverBegan):
            return self._never_began(declared, error, took)
        if self._flight.interrupted and isinstance(error, asyncio.CancelledError):
            return Done()  # the driver closes the call, or leaves it to the next one
        class_ = "timeout" if isinstance(error, TimeoutError) and declared.timeout is not None else name_of(error)
        message = words(error) if isinstance(error, ToolError) else described(error)
        if self._may_retry(tool, declared, error):
            wait = backoff(self._state.run, self._effect.step, self._effect.attempt)
            retry_at = self._station.store.now() + wait
            return self._failed(class_, message, took=took, retry_at=retry_at)
        if declared.effect == "once" and not isinstance(error, ToolError):
            # It broke off: nobody can say whether it acted. A thread may be at it yet.
            done = self._failed(class_, message, took=took, source="doubt", final=False)
            return done if tool.is_async or class_ != "timeout" else replace(done, until=self._over_at(declared))
        return self._failed("tool_error" if isinstance(error, ToolError) else class_, message, took=took)

    def _never_began(self, declared: ToolSpec, error: NeverBegan, took: int) -> Done:
        """No thread was free in its time. If it is this process that leaves, the next one begins it."""
        if not self._flight.interrupted:
            return self._failed("timeout", str(error), took=took)
        if declared.effect != "once":
            return Done()
        # Its intent stands in the journal: it is known that nothing came of it.
        return self._failed("interrupted", str(error), took=took, retry_at=self._station.store.now())

    def _over_at(self, declared: ToolSpec) -> int:
        """When a body that was started here should be over, whoever runs it."""
        return over_at(self._call, declared, self._station.lease)

    def _may_retry(self, tool: Tool[Any, Any, Any], declared: ToolSpec, error: BaseException) -> bool:
        if self._call.failures >= declared.retries or not isinstance(error, Exception):
            return False
        if isinstance(error, ToolError):
            return error.retry
        return declared.effect != "once" or isinstance(error, tuple(tool.retry_on))

    def _failed(
        self,
        class_: str,
        message: str,
        *,
        took: int = 0,
        source: e.Source = "ran",
        retry_at: int | None = None,
        final: bool | None = None,
    ) -> Done:
        entry = e.ToolFailed(
            step=self._effect.step,
            attempt=self._effect.attempt,
            call=self._effect.step,
            class_=class_,
            message=message,
            retry_at=retry_at,
            final=retry_at is None if final is None else final,
            source=source,
            duration=took,
        )
        return Done((entry,))


def _rewritten(entry: e.Entry, by: str) -> e.Entry:
    return replace(entry, rewritten_by=by) if by and isinstance(entry, e.ToolReturned) else entry


def over_at(found: Call, declared: ToolSpec | None, lease: int) -> int:
    """When a body should be over, wherever it runs: until then a doubt about it waits."""
    begun = max([entry.at for entry in (found.intent, *found.steps) if entry is not None], default=0)
    timeout = 0 if declared is None or declared.timeout is None else int(declared.timeout * SECOND)
    return begun + max(lease, timeout) + SECOND
