"""Runs the body of a tool once, and makes a fact of whatever it does: return, raise, hang, or be cut off."""

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from clew.agent import Tool, ToolOutput
from clew.core import entries as e
from clew.core.effects import CallTool
from clew.core.rules import UNKNOWN_OUTCOME, arguments
from clew.core.spec import ToolSpec
from clew.core.state import Call, State
from clew.core.steps import backoff
from clew.core.values import Digest, unpack
from clew.errors import Fatal, ToolError
from clew.runtime.asking import complaint
from clew.runtime.flight import Done, Flight
from clew.runtime.redact import described, name_of, words
from clew.runtime.station import Station
from clew.runtime.user_code import NeverBegan, Raised, Returned, attempt, attempt_sync
from clew.runtime.values import TooLarge, stored


class Body:
    """One attempt at one call."""

    def __init__(self, station: Station, flight: Flight, effect: CallTool, state: State, found: Call) -> None:
        self._station = station
        self._flight = flight
        self._effect = effect
        self._state = state
        self._call = found
        self._blobs: dict[Digest, bytes] = {}

    async def perform(
        self,
        tool: Tool[Any, Any, Any] | None,
        context: Callable[[], object],
        ready: dict[str, Any] | None,
    ) -> Done:
        declared = self._state.tool_of(self._call)
        if tool is None or declared is None:
            return self._failed("missing_tool", f"the tool {self._call.tool!r} is not there any more", source="invalid")
        checked = Returned(ready) if ready is not None else attempt_sync(tool.validate, unpack(arguments(self._call)))
        if isinstance(checked, Raised):
            return self._failed("invalid_arguments", complaint(checked.error), source="invalid")
        kwargs = checked.value
        begun = monotonic_ns()
        outcome = await attempt(self._run(tool, declared, context, kwargs))
        took = (monotonic_ns() - begun) // 1000
        if isinstance(outcome, Raised):
            return self._raised(tool, declared, outcome.error, took)
        return self._returned(tool, outcome.value, took)

    def broken_off(self, tool: Tool[Any, Any, Any] | None, error: BaseException) -> Done:
        """The body was cut off from inside: raised, as any other exception would be."""
        declared = self._state.tool_of(self._call)
        if tool is None or declared is None:
            return self._failed(type(error).__name__, described(error))
        return self._raised(tool, declared, error, 0)

    async def _run(
        self, tool: Tool[Any, Any, Any], declared: ToolSpec, context: Callable[[], object], kwargs: dict[str, Any]
    ) -> object:
        positional = (context(),) if tool.takes_context else ()
        if tool.is_async:
            body = tool.fn(*positional, **kwargs)
        else:
            body = self._station.threads.run(lambda: tool.fn(*positional, **kwargs), {})
        if declared.timeout is None:
            return await body
        async with asyncio.timeout(declared.timeout):
            return await body

    def _returned(self, tool: Tool[Any, Any, Any], value: object, took: int) -> Done:
        output = value if isinstance(value, ToolOutput) else None
        if output is not None and output.state:
            told = "the tool ran, but ToolOutput(state=…) comes with a later release of Clew: its state is not kept"
            return self._failed("unsupported", told, took=took)
        made = attempt_sync(self._fact, tool, value if output is None else output.content, output, took)
        if isinstance(made, Raised):
            told = f"the tool ran, but what it returned cannot be stored: {described(made.error)}"
            return self._failed("unstorable", told, took=took)
        return Done((made.value,), self._blobs)

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
            return self._failed("timeout", str(error), took=took)
        if self._flight.interrupted and isinstance(error, asyncio.CancelledError):
            return Done()  # the driver closes the call, or leaves it to the next one
        class_ = "timeout" if isinstance(error, TimeoutError) and declared.timeout is not None else name_of(error)
        message = words(error) if isinstance(error, ToolError) else described(error)
        if self._may_retry(tool, declared, error):
            wait = backoff(self._state.run, self._effect.step, self._effect.attempt)
            retry_at = self._station.store.now() + wait
            return self._failed(class_, message, took=took, retry_at=retry_at)
        if declared.effect == "once" and not isinstance(error, ToolError):
            return self._unknown(message, took)
        return self._failed("tool_error" if isinstance(error, ToolError) else class_, message, took=took)

    def _may_retry(self, tool: Tool[Any, Any, Any], declared: ToolSpec, error: BaseException) -> bool:
        if self._effect.attempt > declared.retries or not isinstance(error, Exception):
            return False
        if isinstance(error, ToolError):
            return error.retry
        return declared.effect != "once" or isinstance(error, tuple(tool.retry_on))

    def _unknown(self, what: str, took: int) -> Done:
        """A `once` body that broke off: nobody can say whether it acted."""
        doubt = e.DoubtResolved(
            step=self._effect.step, call=self._effect.step, how="policy", finding="unknown", rule="report"
        )
        message = f"{UNKNOWN_OUTCOME.partition(':')[0]}: {what}"
        failed = self._failed("outcome_unknown", message, took=took, source="doubt")
        return Done((doubt, *failed.entries))

    def _failed(
        self, class_: str, message: str, *, took: int = 0, source: e.Source = "ran", retry_at: int | None = None
    ) -> Done:
        entry = e.ToolFailed(
            step=self._effect.step,
            attempt=self._effect.attempt,
            call=self._effect.step,
            class_=class_,
            message=message,
            retry_at=retry_at,
            final=retry_at is None,
            source=source,
            duration=took,
        )
        return Done((entry,))
