"""The hands of one driver: perform one effect each, and answer with the facts that came of it. They decide nothing."""

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clew.agent import Agent, LaterVerbs, RunContext, ToolContext
from clew.core import entries as e
from clew.core.effects import CallModel, CallTool, CheckOutput
from clew.core.entries import Entry
from clew.core.outcomes import Completed, Failed
from clew.core.rules import arguments, finished
from clew.core.state import Call, State
from clew.core.steps import idempotency_key
from clew.core.values import Digest, Value, pack, unpack
from clew.errors import UsageError
from clew.runtime.asking import Asking
from clew.runtime.bodies import Body
from clew.runtime.flight import Done, Flight
from clew.runtime.redact import described, words
from clew.runtime.station import Station
from clew.runtime.user_code import Raised, attempt_sync
from clew.runtime.values import stored

if TYPE_CHECKING:
    from clew.runtime.saying import Saying


class Hands:
    def __init__(self, station: Station, agent: Agent[Any, Any], deps: object) -> None:
        self._station = station
        self._agent = agent
        self._deps = deps
        self._asking = Asking(station, agent, self._run_context)

    async def perform(self, flight: Flight, state: State) -> Done:
        match flight.effect:
            case CallModel() as effect:
                return await self._asking.perform(flight, effect, state)
            case CallTool() as effect:
                return await self._call_tool(flight, effect, state)

    def broken_off(self, flight: Flight, state: State, error: BaseException) -> Done:
        """What an effect came to whose task was cancelled by somebody who is not its driver."""
        match flight.effect:
            case CallModel() as effect:
                return self._asking.broken_off(effect, state)
            case CallTool() as effect:
                found = next(call for call in state.calls if call.id == effect.step)
                return Body(self._station, flight, effect, state, found).broken_off(self._agent.tool(found.tool), error)

    async def _call_tool(self, flight: Flight, effect: CallTool, state: State) -> Done:
        found = next(call for call in state.calls if call.id == effect.step)
        body = Body(self._station, flight, effect, state, found)
        ready = self._asking.validated.pop(effect.step, None)
        return await body.perform(self._agent.tool(found.tool), lambda: self._tool_context(effect, state, found), ready)

    def _run_context(self, state: State) -> RunContext[Any]:
        assert state.started is not None
        return RunContext(
            deps=self._deps,
            run_id=state.run,
            thread_id=state.started.thread or state.run,
            agent=state.agent,
            turn=state.turn,
            metadata=unpack(state.started.metadata),
            verbs=LaterVerbs(),
        )

    def _tool_context(self, effect: CallTool, state: State, found: Call) -> ToolContext[Any]:
        assert state.started is not None
        return ToolContext(
            deps=self._deps,
            run_id=state.run,
            thread_id=state.started.thread or state.run,
            agent=state.agent,
            turn=state.turn,
            metadata=unpack(state.started.metadata),
            tool=found.tool,
            args=unpack(arguments(found)),
            call_id=found.id,
            step_id=found.id,
            attempt=effect.attempt,
            idempotency_key=idempotency_key(state.run, found.id),
            verbs=LaterVerbs(self._emitter(effect, state)),
        )

    def _emitter(self, effect: CallTool, state: State) -> Callable[[object], None]:
        """Shows watchers a value at once; it is not kept. Sync tools call it from a thread."""
        feed = self._station.feed
        loop = asyncio.get_running_loop()
        home = threading.get_ident()
        saying: Saying | None = None

        def show(value: Value) -> None:
            nonlocal saying
            if saying is None:
                saying = feed.begin(state.run, effect.step, state.epoch, effect.attempt, state.seq)
            feed.progress(state.run, saying, value)

        def emit(value: object) -> None:
            packed = pack(value)
            if threading.get_ident() == home:
                show(packed)
            else:
                loop.call_soon_threadsafe(show, packed)

        return emit

    def check_output(self, effect: CheckOutput, state: State, blobs: dict[Digest, bytes]) -> Entry:
        """The end of the run with a typed output, or what the model is told about its answer."""
        parsed = attempt_sync(self._parsed, effect.text, blobs)
        if isinstance(parsed, Raised):
            known = isinstance(parsed.error, ValueError | UsageError)
            told = words(parsed.error) if known else described(parsed.error)
            if state.rejections < self._agent.spec.output_retries:
                return e.OutputRejected(step=effect.step, message=told)
            return finished(state, Failed("output_invalid", told), e.Output(text=effect.text))
        return finished(state, Completed(), e.Output(text=effect.text, value=parsed.value))

    def _parsed(self, text: str, blobs: "dict[Digest, bytes]") -> Value:
        return stored(self._agent.dump_output(self._agent.parse_output(text)), blobs)
