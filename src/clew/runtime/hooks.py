"""Middleware of one driver: calls its hooks in order, and makes facts of what they change, write and ask for."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from clew.agent import Agent, NoVerbs, RunContext, StateKey, Tell, ToolOutput
from clew.agent.shapes import label
from clew.core import entries as e
from clew.core.calls import Call
from clew.core.effects import RunHooks
from clew.core.entries import Entry
from clew.core.messages import Message, ToolCall
from clew.core.proceeding import arguments
from clew.core.state import State
from clew.core.values import Digest, clean_text, pack, unpack
from clew.errors import ToolError, UsageError
from clew.ports import ModelReply, ModelRequest
from clew.runtime.flight import Done, Update
from clew.runtime.merging import checked_update, seen_as
from clew.runtime.plan import as_messages
from clew.runtime.redact import described
from clew.runtime.user_code import Raised, attempt, attempt_sync
from clew.runtime.user_code import call as call_user
from clew.runtime.values import aside
from clew.runtime.verbs import KeyVerbs, noted_as

if TYPE_CHECKING:
    from clew.policy import Middleware

T = TypeVar("T")
MOST_TOLD = 16_000  # characters that an agent's recovery may have a model told
Hook = Literal[
    "on_input",
    "on_attach",
    "before_model",
    "after_model",
    "before_tool",
    "after_tool",
    "on_turn_end",
    "on_finish",
]
MakeContext = Callable[[State, NoVerbs], RunContext[Any]]
MakeVerbs = Callable[[State, str | None], "HookVerbs"]


class HookFailed(Exception):
    """A hook raised, or gave what it must not give; says which."""


class HookVerbs(KeyVerbs):
    """What middleware may do: read and change state, remark, show, ask for the end, all written with what it changes.

    `only_looks`: a hook whose words could be written nowhere, or would be again and again.
    """

    def __init__(
        self,
        values: Mapping[tuple[str, str], Any],
        emit: Callable[[object], None],
        *,
        only_looks: str | None = None,
    ) -> None:
        super().__init__(values, emit)
        self._only_looks = only_looks
        self.updates: list[Update] = []
        self.notes: list[e.Noted] = []
        self.blobs: dict[Digest, bytes] = {}
        self.ended = False

    def behind(self, other: "HookVerbs | None") -> "HookVerbs":
        """The verbs of a later hook, which sees what an earlier one of the same commit made of the state."""
        if other is not None:
            self._values = dict(other._values)
        return self

    def note(self, kind: str, value: Any) -> Awaitable[None]:
        self._check("ctx.note")
        self.notes.append(noted_as(None, kind, value, self.blobs))
        return _nothing()

    def state_update(self, key: StateKey[Any], value: Any) -> None:
        """Merged at once, so that a value or a merge that fails does so in the hook that gave it."""
        self._check("ctx.state.update")
        update = checked_update(key, value)
        self._values[key.scope, key.name] = seen_as(key, self._values, unpack(update.value))
        self.updates.append(update)

    def end(self) -> None:
        self._check("ctx.end")
        self.ended = True

    def _check(self, verb: str) -> None:
        if self._only_looks is not None:
            raise UsageError(f"{verb} cannot be called in {self._only_looks}: it must change nothing")

    def facts(self, by: str, step: str | None = None, *, mark: bool = False) -> tuple[Entry, ...]:
        changed = self.updates or self.ended or mark
        return (*self.notes, *([e.StateChanged(step=step, by=by, end=self.ended)] if changed else []))


async def _nothing() -> None:
    pass


class Seen(Struct, Generic[T], frozen=True):
    """A value behind all hooks, who rewrote it, and what they wrote beside. `call`: the call that it is about."""

    value: T
    by: str
    verbs: HookVerbs
    hook: str
    call: str | None = None

    def with_facts(self, done: Done) -> Done:
        """The facts of an effect with those of its hooks. What the hooks gave to state keys is a change of its own."""
        entries = self.verbs.facts(self.hook, self.call)
        updates = done.updates
        if not any(isinstance(entry, e.ToolReturned | e.StateChanged) for entry in done.entries):
            updates = tuple(self.verbs.updates)
        elif self.verbs.updates:
            updates = (*updates, *self.verbs.updates)
            entries = tuple(entry for entry in entries if not isinstance(entry, e.StateChanged) or entry.end)
        return replace(
            done, entries=(*done.entries, *entries), updates=updates, blobs={**done.blobs, **self.verbs.blobs}
        )


class Hooks:
    """The middleware of one agent, for one driver."""

    def __init__(self, agent: Agent[Any, Any], context: MakeContext, verbs: MakeVerbs) -> None:
        self._agent = agent
        self._context = context
        self._verbs = verbs
        self._by_hook: dict[str, list[Middleware]] = {hook: [] for hook in Hook.__args__}  # type: ignore[attr-defined]
        if not agent.middleware:
            return
        from clew.policy import Middleware as Base

        for hook in Hook.__args__:  # type: ignore[attr-defined]
            own = getattr(Base, hook)
            self._by_hook[hook] = [one for one in agent.middleware if getattr(type(one), hook, own) is not own]
        self._named = {
            hook: f"{', '.join(map(label, ones))}.{hook}" if ones else hook for hook, ones in self._by_hook.items()
        }

    def has(self, hook: Hook) -> bool:
        return bool(self._by_hook[hook])

    # --- around the model

    async def before_model(self, state: State, request: ModelRequest) -> Seen[ModelRequest]:
        verbs = self._verbs(state, None)
        return await self._through("before_model", state, verbs, request, _is(ModelRequest))

    async def after_model(
        self, state: State, reply: ModelReply, before: Seen[ModelRequest] | None = None
    ) -> Seen[ModelReply]:
        verbs = self._verbs(state, None).behind(None if before is None else before.verbs)
        return await self._through("after_model", state, verbs, reply, _is(ModelReply))

    async def _through(
        self, hook: Hook, state: State, verbs: HookVerbs, value: T, check: Callable[[object], T]
    ) -> Seen[T]:
        """The value handed from one hook to the next. Raises HookFailed for the first that fails."""
        context = self._context(state, verbs)
        by: list[str] = []
        for one in self._by_hook[hook]:
            said = await self._ask(one, hook, context, value)
            if said is not None:
                value = self._checked(one, hook, said, check)
                by.append(label(one))
        return Seen(value, ", ".join(by), verbs, self._named[hook])

    async def _ask(self, one: "Middleware", hook: Hook, *args: object) -> object:
        outcome = await attempt(call_user(getattr(one, hook), *args))
        if isinstance(outcome, Raised):
            if isinstance(outcome.error, asyncio.CancelledError):
                raise outcome.error
            raise HookFailed(f"middleware {label(one)}.{hook}: {described(outcome.error)}") from outcome.error
        return cast("object", outcome.value)

    def _checked(self, one: "Middleware", hook: Hook, said: object, check: Callable[[object], T]) -> T:
        try:
            return check(said)
        except UsageError as error:
            raise HookFailed(f"middleware {label(one)}.{hook} returned what cannot be used: {error}") from error

    # --- around a tool

    async def before_tool(self, state: State, found: Call) -> Seen[ToolCall | ToolOutput]:
        """The call with other arguments, or its answer, which ends the round."""
        verbs = self._verbs(state, None)
        context = self._context(state, verbs)
        by: list[str] = []
        asked = current(found)
        value: ToolCall | ToolOutput = asked
        check = _answers_or_is(asked)
        for one in self._by_hook["before_tool"]:
            said = await self._ask(one, "before_tool", context, value)
            if said is not None:
                value = self._checked(one, "before_tool", said, check)
                by.append(label(one))
            if isinstance(value, ToolOutput):
                break
        return Seen(value, ", ".join(by), verbs, self._named["before_tool"], found.id)

    async def after_tool(self, state: State, found: Call, output: ToolOutput) -> "Seen[ToolOutput] | Raised":
        outcome = await attempt(self._after_tool(state, found, output))
        return outcome if isinstance(outcome, Raised) else outcome.value

    async def _after_tool(self, state: State, found: Call, output: ToolOutput) -> Seen[ToolOutput]:
        verbs = self._verbs(state, None)
        context = self._context(state, verbs)
        by: list[str] = []
        for one in self._by_hook["after_tool"]:
            said = await self._ask(one, "after_tool", context, current(found), output)
            if said is not None:
                output = self._checked(one, "after_tool", said, _is(ToolOutput))
                by.append(label(one))
        return Seen(output, ", ".join(by), verbs, self._named["after_tool"], found.id)

    @property
    def recovers(self) -> bool:
        """Whether the agent has a recovery of its own."""
        return callable(self._agent.on_tool_error)

    async def recovered(self, state: State, found: Call, done: Done) -> Done:
        """A final failure of a tool, as the agent's own recovery wants it told."""
        recovery = self._agent.on_tool_error
        if not callable(recovery):
            return done
        entries = [await self._recovered(state, found, entry, recovery) for entry in done.entries]
        return replace(done, entries=tuple(entries))

    async def _recovered(self, state: State, found: Call, entry: Entry, recovery: Callable[..., Any]) -> Entry:
        if not isinstance(entry, e.ToolFailed) or not entry.final or entry.class_ == "fatal":
            return entry
        context = self._context(state, self._verbs(state, "on_tool_error"))
        outcome = await attempt(call_user(recovery, context, current(found), ToolError(entry.message)))
        if isinstance(outcome, Raised):
            if isinstance(outcome.error, asyncio.CancelledError):
                raise outcome.error  # the process leaves, or the run is cancelled: that is no word of the agent's
            return replace(entry, stop=True, message=f"{entry.message} (on_tool_error: {described(outcome.error)})")
        count = state.course.failing.get(found.tool, 0) + 1  # this failure is not counted yet
        return _as_recovered(entry, outcome.value, count)

    # --- at boundaries

    async def at(self, effect: RunHooks, state: State) -> Done:
        """A boundary seen by all. Raises HookFailed."""
        attaching = effect.hook == "on_attach"
        verbs = self._verbs(state, "on_attach, which runs each time a process takes the run up" if attaching else None)
        context = self._context(state, verbs)
        by: list[str] = []
        rewritten: Sequence[Message] | None = None
        for one in self._by_hook[effect.hook]:
            given = [list(_input(state) if rewritten is None else rewritten)] if effect.hook == "on_input" else []
            said = await self._ask(one, effect.hook, context, *given)
            if effect.hook == "on_input" and said is not None:
                rewritten = self._checked(one, "on_input", said, as_messages)
                by.append(label(one))
        if attaching:
            return Done(passed=True)
        entries = verbs.facts(self._named[effect.hook], effect.step, mark=True)
        if rewritten is not None:
            entries = (e.InputRewritten(messages=aside(rewritten, verbs.blobs), by=", ".join(by)), *entries)
        return Done(entries, verbs.blobs, tuple(verbs.updates))

    async def on_finish(self, state: State, result: object) -> list[BaseException]:
        """After the end is committed: what is raised now changes nothing any more."""
        context = self._context(state, self._verbs(state, "on_finish, behind the end of the run"))
        raised: list[BaseException] = []
        for one in self._by_hook["on_finish"]:
            outcome = await attempt(call_user(cast("Callable[..., Any]", one.on_finish), context, result))
            if isinstance(outcome, Raised):
                raised.append(outcome.error)
        return raised


def _as_recovered(entry: e.ToolFailed, said: object, count: int) -> e.ToolFailed:
    """A failure, as what an agent's recovery said of it wants it. What says nothing that is known stops."""
    match said:
        case None | "tell":
            return entry
        case "stop":
            return replace(entry, stop=True)
        case int() as most if not isinstance(most, bool):
            return replace(entry, stop=count >= most)
        case Tell(text=str(text)):
            return replace(entry, message=clean_text(text[:MOST_TOLD]))
        case other:
            wrong = f"on_tool_error returned a {type(other).__name__}: return 'tell', 'stop', a number or Tell(text)"
            return replace(entry, stop=True, message=f"{entry.message} ({wrong})")


def current(found: Call) -> ToolCall:
    """The call with the arguments in force."""
    if found.judged is None or found.judged.args is None:
        return found.request
    return replace(found.request, _args=arguments(found))


def _input(state: State) -> list[Message]:
    shown = [message for message in state.transcript[state.base_length :] if message.id in state.input_ids]
    return [Message(message.role, message.parts) for message in shown]


def _is(kind: type[T]) -> Callable[[object], T]:
    def check(value: object) -> T:
        if isinstance(value, kind):
            return value
        raise UsageError(f"a {type(value).__name__}: return a {kind.__name__}, or None to leave it as it is")

    return check


def _answers_or_is(asked: ToolCall) -> Callable[[object], ToolCall | ToolOutput]:
    """What `before_tool` may give back: an answer, or the same call with other arguments."""

    def check(value: object) -> ToolCall | ToolOutput:
        if isinstance(value, ToolOutput):
            return value
        if not isinstance(value, ToolCall):
            said = type(value).__name__
            raise UsageError(f"a {said}: return a ToolCall or ToolOutput, or None to leave it as it is")
        call = value
        if (call.call, call.tool) != (asked.call, asked.tool):
            raise UsageError(f"call {call.call!r} of {call.tool!r}: only the arguments of a call can be changed")
        read = attempt_sync(lambda: pack(call.args))
        if isinstance(read, Raised):
            raise UsageError(f"arguments that cannot be read: {described(read.error)}")
        return call

    return check
