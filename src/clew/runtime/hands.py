"""The hands of one driver: perform one effect each, and answer with the facts that came of it. They decide nothing."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clew.agent import Agent, NoVerbs, RunContext, Tool, ToolContext, ToolVerbs
from clew.core import entries as e
from clew.core.effects import CallModel, CallTool, CheckOutput, Judge, RunHooks, Verify
from clew.core.entries import Entry
from clew.core.outcomes import Completed, Failed
from clew.core.proceeding import arguments
from clew.core.rules import finished, next_model_step
from clew.core.state import Call, State
from clew.core.steps import idempotency_key
from clew.core.values import Digest, Value, pack, unpack
from clew.errors import UsageError
from clew.runtime.asking import Asking
from clew.runtime.bodies import Body
from clew.runtime.flight import PASSED, Done, Flight, Performed
from clew.runtime.hooks import HookFailed, Hooks, HookVerbs
from clew.runtime.redact import described, words
from clew.runtime.station import Station
from clew.runtime.user_code import Raised, attempt, attempt_sync
from clew.runtime.values import referred, stored
from clew.runtime.verbs import BodyVerbs, KeyVerbs
from clew.runtime.verifying import verified

if TYPE_CHECKING:
    from clew.runtime.saying import Saying

log = logging.getLogger("clew.hands")
HOOKS = "hooks"  # the step under which middleware shows progress


class Hands:
    def __init__(self, station: Station, agent: Agent[Any, Any], deps: object) -> None:
        self._station = station
        self._agent = agent
        self._deps = deps
        self.state_blobs: dict[Digest, bytes] = {}  # large values of state keys, which merges read
        self._hooks = Hooks(agent, self._run_context, self._hook_verbs)
        self._asking = Asking(station, agent, self._reading_context, self._hooks)
        from clew.runtime.judging import Judging  # an agent that is only defined needs no rules

        self._judging = Judging(station, agent, self._reading_context, self._hooks)

    def at_once(self, effect: Judge | RunHooks, state: State) -> Done | None:
        """What follows without waiting, or None for what has to be performed."""
        if isinstance(effect, RunHooks):
            return None if self._hooks.has(effect.hook) else PASSED
        return self._judging.at_once(effect, state, self._asking.validated.get(effect.step))

    async def perform(self, flight: Flight, state: State) -> Done:
        await self._load_keys(state)
        match flight.effect:
            case CallModel() as effect:
                return await self._asking.perform(flight, effect, state)
            case CallTool() as effect:
                return await self._call_tool(flight, effect, state)
            case Judge() as effect:
                return await self._judging.perform(effect, state, self._asking.validated.get(effect.step))
            case Verify() as effect:
                return await self._verify(effect, state)
            case RunHooks() as effect:
                return await self._at_boundary(effect, state)

    def broken_off(self, flight: Flight, state: State, error: BaseException) -> Done:
        """What an effect came to whose task was cancelled by somebody who is not its driver."""
        effect: Performed = flight.effect
        match effect:
            case CallModel():
                return self._asking.broken_off(effect, state)
            case CallTool():
                found = state.call(effect.step)
                body = Body(self._station, flight, state, found, self._hooks)
                return body.broken_off(self._agent.tool(found.tool), error)
            case Judge():
                return self._judging.denied(state.call(effect.step), "its judge was cancelled from inside")
            case Verify() | RunHooks():
                return Done()

    async def _call_tool(self, flight: Flight, effect: CallTool, state: State) -> Done:
        found = state.call(effect.step)
        tool = self._agent.tool(found.tool)
        body = Body(self._station, flight, state, found, self._hooks)
        ready = None
        if found.judged is None or found.judged.args_rewritten_by is None:
            ready = self._asking.validated.pop(effect.step, None)
        context = None
        if tool is not None and tool.takes_context:
            context = self._body_context(flight, effect, state, found, tool)
        return await body.perform(tool, context, ready)

    def _body_context(
        self, flight: Flight, effect: CallTool, state: State, found: Call, tool: Tool[Any, Any, Any]
    ) -> ToolContext[Any]:
        verbs = BodyVerbs(
            self._station,
            flight,
            found,
            values=self._keys(state),
            is_async=tool.is_async,
            emit=self._emitter(effect.step, effect.attempt, state),
        )
        return self._tool_context(effect.attempt, state, found, verbs)

    async def _verify(self, effect: Verify, state: State) -> Done:
        found = state.call(effect.step)
        context = self._tool_context(found.attempt, state, found, NoVerbs(), subject=effect.subject)
        return await verified(self._station, self._agent.tool(found.tool), context, effect, found)

    async def _at_boundary(self, effect: RunHooks, state: State) -> Done:
        outcome = await attempt(self._hooks.at(effect, state))
        if not isinstance(outcome, Raised):
            return outcome.value
        if not isinstance(outcome.error, HookFailed):
            raise outcome.error
        # As a failure of the model call that would follow: the rules end the run, once every letter is read.
        failed = e.ModelFailed(step=next_model_step(state), class_="middleware", message=words(outcome.error))
        return Done((failed,))

    async def on_finish(self, state: State, result: object) -> None:
        for error in await self._hooks.on_finish(state, result):
            log.error("run %s: middleware failed behind the end: %s", state.run, described(error))

    @property
    def has_on_finish(self) -> bool:
        return self._hooks.has("on_finish")

    # --- state keys

    async def _load_keys(self, state: State) -> None:
        """Values of state keys that are stored aside."""
        if not state.run_state and not state.thread_state:
            return
        written = [value for one in state.course.writes.values() for value in (one.before, *one.given.values())]
        named = {referred(value) for value in (*state.run_state.values(), *state.thread_state.values(), *written)}
        missing = {digest for digest in named if digest is not None} - self.state_blobs.keys()
        if missing:
            self.state_blobs.update(await self._station.store.blobs(missing))

    def _keys(self, state: State) -> Mapping[tuple[str, str], Any]:
        """The state of the run and its thread, by scope and name."""
        if not state.run_state and not state.thread_state:
            return {}
        fetch = self.state_blobs.__getitem__
        return {
            **{("thread", name): unpack(value, fetch) for name, value in state.thread_state.items()},
            **{("run", name): unpack(value, fetch) for name, value in state.run_state.items()},
        }

    # --- contexts

    def _hook_verbs(self, state: State, only_looks: str | None) -> HookVerbs:
        return HookVerbs(self._keys(state), self._emitter(HOOKS, 1, state), only_looks=only_looks)

    def _reading_context(self, state: State) -> RunContext[Any]:
        """For functions that only look: instructions, policies, approvals."""
        return self._run_context(state, KeyVerbs(self._keys(state)))

    def _run_context(self, state: State, verbs: ToolVerbs) -> RunContext[Any]:
        assert state.started is not None
        return RunContext(
            deps=self._deps,
            run_id=state.run,
            thread_id=state.started.thread or state.run,
            agent=state.agent,
            turn=state.turn,
            metadata=unpack(state.started.metadata),
            verbs=verbs,
        )

    def _tool_context(
        self, attempt: int, state: State, found: Call, verbs: ToolVerbs, *, subject: str | None = None
    ) -> ToolContext[Any]:
        assert state.started is not None
        step = subject or found.id
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
            step_id=step,
            attempt=attempt,
            idempotency_key=idempotency_key(state.run, step),
            decision=_decision(found),
            verbs=verbs,
        )

    def _emitter(self, step: str, attempt: int, state: State) -> Callable[[object], None]:
        """Shows watchers a value at once; it is not kept. Sync tools call it from a thread."""
        feed = self._station.feed
        loop = asyncio.get_running_loop()
        home = threading.get_ident()
        saying: Saying | None = None

        def show(value: Value) -> None:
            nonlocal saying
            if saying is None:
                saying = feed.begin(state.run, step, state.epoch, attempt, state.seq)
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


def _decision(found: Call) -> Any:
    """What somebody decided about this very call."""
    for kind in ("doubt", "approval"):
        wait = found.ticket(kind)
        if wait is not None and isinstance(wait.closed, e.DecisionMade):
            return wait.closed.decision
    return None
