"""Whether a call may run: middleware, rules and functions of the agent are asked, and what they say becomes a fact."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from clew.agent import Agent, RunContext, Tool, ToolOutput
from clew.agent.shapes import label
from clew.core import entries as e
from clew.core.calls import Call
from clew.core.effects import Judge
from clew.core.messages import ToolCall
from clew.core.proceeding import stated_arguments
from clew.core.state import State
from clew.core.values import Digest, clean_text, digest, pack, unpack
from clew.errors import UsageError
from clew.policy import Rule, Verdict
from clew.policy.rules import ORDER
from clew.runtime.asking import complaint
from clew.runtime.flight import PASSED, Done
from clew.runtime.hooks import HookFailed, Hooks, Seen, current
from clew.runtime.merging import checked_update
from clew.runtime.redact import described
from clew.runtime.station import Station
from clew.runtime.user_code import Raised, Returned, attempt, attempt_sync
from clew.runtime.user_code import call as call_user
from clew.runtime.values import TooLarge, stored

if TYPE_CHECKING:
    from concurrent import futures

PATIENCE = 0.05  # seconds for which a reply waits for verdicts before it is committed without them

Outcome = Returned[Any] | Raised
Asked = Outcome | Callable[[], Awaitable[Any]]  # what is still to be awaited is not begun twice


class Opinion(Struct, frozen=True):
    """A verdict and the rule that gave it."""

    verdict: Verdict
    rule: str


class Round(Struct, frozen=True):
    """One call before its judges: who was asked, and what they said or will say."""

    call: ToolCall
    by: str | None  # who rewrote its arguments
    asked: tuple[tuple[str, Asked], ...]


class Judging:
    """The judges of one driver."""

    def __init__(
        self, station: Station, agent: Agent[Any, Any], context: Callable[[State], RunContext[Any]], hooks: Hooks
    ) -> None:
        self._station = station
        self._agent = agent
        self._context = context
        self._hooks = hooks
        self._rounds: dict[str, Round] = {}
        self._waited: tuple[int, float] = (0, 0.0)  # in which turn, and how long: all its calls share one patience
        self._rules = [rule for rule in agent.policy if isinstance(rule, Rule)]
        self._judges: list[Callable[..., Any]] = [one for one in agent.policy if not isinstance(one, Rule)]

    def at_once(self, effect: Judge, state: State, validated: Mapping[str, Any] | None) -> Done | None:
        """What can be said without waiting, or None."""
        found = state.call(effect.step)
        if effect.step in self._rounds or (self._hooks.has("before_tool") and not effect.again):
            return None
        held = self._ask(found, state, current(found), None, again=effect.again, validated=validated)
        if any(callable(said) for _, said in held.asked):
            self._rounds[effect.step] = held
            return None
        return self._verdict(state, found, held, again=effect.again)

    async def perform(self, effect: Judge, state: State, validated: Mapping[str, Any] | None) -> Done:
        found = state.call(effect.step)
        held = self._rounds.pop(effect.step, None)
        seen: Seen[ToolCall | ToolOutput] | None = None
        if held is None:
            outcome = await attempt(self._rewritten(state, found, again=effect.again))
            if isinstance(outcome, Raised):
                if not isinstance(outcome.error, HookFailed):
                    raise outcome.error
                return self.denied(found, str(outcome.error))
            seen = outcome.value
            if seen is not None and isinstance(seen.value, ToolOutput):
                return seen.with_facts(self._answered(found, seen.value, seen.by))
            call = current(found) if seen is None else cast("ToolCall", seen.value)
            by = None if seen is None or not seen.by else seen.by
            held = self._ask(found, state, call, by, again=effect.again, validated=None if by else validated)
        asked = [(name, await answered_by(said) if callable(said) else said) for name, said in held.asked]
        done = self._verdict(state, found, replace(held, asked=tuple(asked)), again=effect.again)
        return done if seen is None else seen.with_facts(done)

    async def _rewritten(self, state: State, found: Call, *, again: bool) -> "Seen[ToolCall | ToolOutput] | None":
        if again or not self._hooks.has("before_tool"):
            return None
        return await self._hooks.before_tool(state, found)

    # --- asking

    def _ask(
        self,
        found: Call,
        state: State,
        call: ToolCall,
        by: str | None,
        *,
        again: bool,
        validated: Mapping[str, Any] | None,
    ) -> Round:
        """Everybody who has a say. What waits is answered later; what is sync has its time in a thread."""
        asked: list[tuple[str, Asked]] = []
        tool = self._agent.tool(found.tool)
        if tool is not None and (by is not None or again):
            checked = attempt_sync(tool.validate, call.args)
            asked.append(("arguments", checked if isinstance(checked, Raised) else Returned(None)))
            validated = None if isinstance(checked, Raised) else checked.value
        context = self._context(state)
        asked += [(label(judge), self._put(state, judge, context, call)) for judge in self._judges]
        if tool is not None and callable(tool.needs_approval) and not again:
            given = attempt_sync(whole_arguments, tool, call.args, validated)
            if isinstance(given, Raised):
                asked.append(("needs_approval", given))
            else:
                asked.append(("needs_approval", self._put(state, tool.needs_approval, context, given.value)))
        return Round(call, by, tuple(asked))

    def _put(self, state: State, judge: Callable[..., Any], *args: object) -> Asked:
        if iscoroutinefunction(judge) or iscoroutinefunction(vars(type(judge)).get("__call__")):
            return lambda: call_user(judge, *args)
        turn, spent = self._waited if self._waited[0] == state.turn else (state.turn, 0.0)
        begun = time.monotonic()
        said = self._station.threads.within(lambda: judge(*args), max(PATIENCE - spent, 0))
        self._waited = turn, spent + time.monotonic() - begun
        if not said.done():
            return lambda: _later(said)
        outcome = said.result()
        if isinstance(outcome, Returned) and isinstance(cast("object", outcome.value), Awaitable):
            return lambda: cast("Awaitable[Any]", outcome.value)
        return outcome

    # --- concluding

    def _verdict(self, state: State, found: Call, held: Round, *, again: bool) -> Done:
        opinions = matching(self._rules, found.tool, held.call.args)
        for name, said in held.asked:
            assert not callable(said)
            opinion = opinion_of(name, said)
            if opinion is not None:
                opinions.append(opinion)
        tool = self._agent.tool(found.tool)
        if tool is not None and tool.needs_approval is True and not again:
            opinions.append(Opinion(Verdict("ask"), "needs_approval"))
        if again:
            opinions = [one for one in opinions if one.verdict.kind in ("block", "deny")]
        told = decisive(opinions)
        judged = self._judged(found, held, told, again=again)
        if judged is None:
            return PASSED
        if judged.verdict == "ask":
            judged = self._remembered(state, found, judged, tool)
        blobs: dict[Digest, bytes] = {}
        try:
            return Done((replace(judged, value=stored(judged.value, blobs)),), blobs)
        except (UsageError, TooLarge) as error:
            return self.denied(found, f"the answer of {judged.rule} cannot be stored: {error}")

    def _judged(self, found: Call, held: Round, told: Opinion | None, *, again: bool) -> e.CallJudged | None:
        """The fact; None for a plain allow, of which nothing is written."""
        if told is None and held.by is None and not again:
            return None
        verdict = Verdict("allow") if told is None else told.verdict
        return e.CallJudged(
            step=found.id,
            call=found.id,
            tool=found.tool,
            args=pack(held.call.args) if held.by is not None or again else stated_arguments(found),
            verdict=verdict.kind,
            rule="edited" if told is None and again else "" if told is None else told.rule,
            reason=verdict.reason or None,
            value=verdict.value,
            args_rewritten_by=held.by,
        )

    def _remembered(
        self, state: State, found: Call, judged: e.CallJudged, tool: Tool[Any, Any, Any] | None
    ) -> e.CallJudged:
        """An action that was approved before, for this run or thread, passes."""
        key = self._action_key(state, found, judged, tool)
        if key in state.run_approvals or key in state.thread_approvals:
            return replace(judged, verdict="allow", rule="remembered", reason=judged.rule, action_key=key)
        return replace(judged, action_key=key)

    def _action_key(self, state: State, found: Call, judged: e.CallJudged, tool: Tool[Any, Any, Any] | None) -> str:
        """What stands for an action: tool, arguments and schema, or what its declaration makes of them."""
        declared = state.tool_of(found)
        schema = declared.schema if declared is not None else {}
        own = None if tool is None else tool.action_key
        args = unpack(judged.args) if judged.args is not None else found.request.args
        if own is None or tool is None:
            return digest([found.tool, pack(args), schema])
        context = self._context(state)
        made = (
            Returned(own)
            if isinstance(own, str)
            else attempt_sync(lambda: own(context, whole_arguments(tool, args, None)))
        )
        key = described(made.error) if isinstance(made, Raised) else str(made.value)
        return digest([found.tool, key, schema])

    def denied(self, found: Call, reason: str) -> Done:
        return Done(
            (
                e.CallJudged(
                    step=found.id,
                    call=found.id,
                    tool=found.tool,
                    args=stated_arguments(found),
                    verdict="deny",
                    rule="error",
                    reason=reason,
                ),
            )
        )

    def _answered(self, found: Call, output: ToolOutput, by: str) -> Done:
        """Middleware gave the result itself."""
        blobs: dict[Digest, bytes] = {}
        try:
            content = stored(_plain(output.content), blobs)
            artifacts = tuple([stored(_plain(one), blobs) for one in output.artifacts])
            metadata = stored(dict(output.metadata), blobs)
            updates = tuple([checked_update(key, value) for key, value in (output.state or {}).items()])
        except (UsageError, TooLarge, ValueError) as error:
            return self.denied(found, f"the answer of middleware {by} cannot be stored: {error}")
        judged = e.CallJudged(
            step=found.id,
            call=found.id,
            tool=found.tool,
            args=stated_arguments(found),
            verdict="answer",
            rule=f"middleware:{by}",
        )
        returned = e.ToolReturned(
            step=found.id,
            call=found.id,
            content=content,
            artifacts=artifacts,
            metadata=metadata,
            source="middleware",
            end=output.end,
        )
        return Done((judged, returned), blobs, updates)


def matching(rules: Iterable[Rule], tool: str, args: Mapping[str, Any]) -> list[Opinion]:
    return [Opinion(rule, str(rule)) for rule in rules if rule.matches(tool, args)]


def decisive(opinions: Iterable[Opinion]) -> Opinion | None:
    """The one that counts: the first of the strongest."""
    return min(opinions, key=lambda one: ORDER.index(one.verdict.kind), default=None)


def whole_arguments(
    tool: Tool[Any, Any, Any], args: dict[str, Any], validated: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Validated arguments with the defaults of those that the model left out."""
    left = {one.name: one.default for one in tool.signature.parameters if not one.required}
    return {**left, **(tool.validate(args) if validated is None else validated)}


def opinion_of(name: str, said: Outcome) -> Opinion | None:
    """What one who was asked has said. Who raises denies; of an approval that cannot be found out somebody is asked."""
    approval = name == "needs_approval"
    if isinstance(said, Raised):
        why = complaint(said.error) if name == "arguments" else f"{name} raised {described(said.error)}"
        return Opinion(Verdict("ask" if approval else "deny", why), name)
    match cast("object", said.value):
        case None:
            return None
        case False if approval:
            return None
        case Verdict(kind=kind, reason=str(reason)) as verdict if kind in ORDER:
            return Opinion(
                replace(verdict, reason=clean_text(reason)), str(verdict) if isinstance(verdict, Rule) else name
            )
        case _ if approval:
            return Opinion(Verdict("ask"), name)
        case other:
            return Opinion(Verdict("deny", f"{name} returned a {type(other).__name__}, which is no verdict"), name)


async def answered_by(judge: Callable[[], Awaitable[Any]]) -> Outcome:
    """What an async judge came to. One that is cancelled, by whomever, ends the judging."""
    outcome = await attempt(call_user(judge))
    if isinstance(outcome, Raised) and isinstance(outcome.error, asyncio.CancelledError):
        raise outcome.error
    return outcome


async def _later(said: "futures.Future[Outcome]") -> Any:
    outcome = await asyncio.wrap_future(said)
    if isinstance(outcome, Raised):
        raise outcome.error
    value = cast("object", outcome.value)
    return await cast("Awaitable[object]", value) if isinstance(value, Awaitable) else value


def _plain(content: object) -> object:
    from clew.agent.schema import to_json

    return content if isinstance(content, str | int | float | bool | None) else to_json(content)
