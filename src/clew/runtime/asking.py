"""Asks a model once: hears the stream out, passes fragments on, and makes the reply fit for a journal."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from decimal import Decimal
from time import monotonic_ns
from typing import Any, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from clew import codec
from clew.agent import Agent
from clew.core import entries as e
from clew.core.effects import CallModel
from clew.core.messages import Data, Message, Part, Refusal, Text, Thinking, ToolCall, Usage
from clew.core.spec import money
from clew.core.state import State
from clew.core.steps import backoff, call_step
from clew.core.values import (
    MAX_DEPTH,
    VALUE_LIMIT,
    Digest,
    Value,
    blob_form,
    clean_text,
    digest,
    nesting,
    parse_arguments,
)
from clew.errors import JournalCorrupt, ModelError, StoreUnavailable, Unsupported, UsageError
from clew.ports import Fragment, Model, ModelReply, ModelRequest
from clew.runtime.flight import Done, Flight
from clew.runtime.hooks import HookFailed, Hooks, Seen
from clew.runtime.redact import described, words
from clew.runtime.saying import Saying
from clew.runtime.station import Station
from clew.runtime.user_code import Raised, attempt, attempt_sync, call
from clew.runtime.values import Aside, cleaned

CHARACTERS_PER_TOKEN = 4
GO_ON = "Your reply was cut off at its length limit. Go on exactly where it ended, and repeat nothing."
CANCELLED_INSIDE = "the call to the model was cancelled from inside"
STORE_AGAIN = 0.1  # seconds
DEEPEST = 4 * MAX_DEPTH  # levels of a raw item, which is not ours to flatten
log = logging.getLogger("clew.model")

FINISHES = frozenset(get_args(e.Finish))


class Heard(Struct, frozen=True, gc=False):
    """What a model was asked and what it answered; `first` is when its first fragment came."""

    request: ModelRequest
    reply: ModelReply
    first: int | None
    before: "Seen[ModelRequest] | None" = None
    after: "Seen[ModelReply] | None" = None


class Asking:
    """The model of one driver. `validated` keeps arguments that were already held against their schema."""

    def __init__(
        self, station: Station, agent: Agent[Any, Any], context: Callable[[State], Any], hooks: "Hooks"
    ) -> None:
        self._station = station
        self._agent = agent
        self._context = context
        self._hooks = hooks
        self._aside = Aside()
        self._model: Model | None = None
        self.validated: dict[str, dict[str, Any]] = {}

    async def perform(self, flight: Flight, effect: CallModel, state: State) -> Done:
        feed = self._station.feed
        begun = monotonic_ns()
        saying = feed.begin(state.run, effect.step, state.epoch, effect.attempt, state.seq)
        shown = await self._shown(state)
        outcome = await attempt(self._ask(state, effect, saying, shown))
        if isinstance(outcome, Raised):
            entry = self._raised(flight, state, effect, outcome.error, saying)
            return Done(() if entry is None else (entry,))
        heard = outcome.value
        if isinstance(heard, Done):
            return heard
        # Models are anybody's code: a reply that is not one must not take the driver down with it.
        made = attempt_sync(self._with_hooks, state, effect, heard, _since(begun))
        if isinstance(made, Raised):
            usage, cost = self._spent(heard.reply)
            return Done((self._failed(state, effect, made.error, usage, cost),))
        return made.value

    def _with_hooks(self, state: State, effect: CallModel, heard: Heard, took: int) -> Done:
        """The reply with what middleware changed around it."""
        entry = self._replied(state, effect, heard, took)
        blobs: dict[Digest, bytes] = {}
        if isinstance(entry, e.ModelReplied) and self._agent.declared.record_requests and entry.request is not None:
            entry = replace(entry, request=replace(entry.request, blob=self._recorded(heard.request, blobs)))
        if isinstance(entry, e.ModelReplied) and heard.after is not None:
            entry = replace(entry, rewritten_by=heard.after.by or None, end=heard.after.verbs.ended)
        done = Done((entry,), blobs)
        for seen in (heard.before, heard.after):
            done = done if seen is None else seen.with_facts(done)
        return done

    def _recorded(self, request: ModelRequest, blobs: dict[Digest, bytes]) -> Value:
        """The whole request, stored aside."""
        whole = msgspec.json.encode([request.instructions, list(request.messages), request.tools, request.settings])
        reference, name = blob_form(whole, "application/json")
        blobs[name] = whole
        return reference

    def _spent(self, reply: object) -> tuple[Usage | None, Decimal | None]:
        """What a reply cost that cannot be kept."""
        if not isinstance(reply, ModelReply) or not isinstance(cast("object", reply.usage), Usage):
            return None, None
        return reply.usage, money(reply.cost)

    async def _shown(self, state: State) -> Sequence[Message]:
        """The conversation. A store that is away is no fault of the model: it is asked until it answers."""
        while True:
            try:
                return await self._aside.shown(state.transcript, self._station.store)
            except StoreUnavailable as error:
                log.warning("run %s: a large value cannot be read now, trying again: %s", state.run, error)
            await asyncio.sleep(STORE_AGAIN)

    async def _ask(self, state: State, effect: CallModel, saying: Saying, shown: Sequence[Message]) -> Heard | Done:
        request = await self._request(state, effect, shown)
        before = await self._hooks.before_model(state, request) if self._hooks.has("before_model") else None
        if before is not None:
            if before.verbs.ended:
                return before.with_facts(Done())
            request = before.value
        heard = await self._heard(self._resolved(state), request, saying)
        if self._hooks.has("after_model"):
            return await self._seen_after(effect, state, heard, before)
        return heard if before is None else replace(heard, before=before)

    async def _seen_after(
        self, effect: CallModel, state: State, heard: Heard, before: "Seen[ModelRequest] | None"
    ) -> Heard | Done:
        """The reply as middleware leaves it. What fails now was paid for all the same."""
        outcome = await attempt(self._hooks.after_model(state, heard.reply, before))
        if isinstance(outcome, Raised):
            if not isinstance(outcome.error, HookFailed):
                raise outcome.error
            return Done((self._failed(state, effect, outcome.error, *self._spent(heard.reply)),))
        return replace(heard, reply=outcome.value.value, before=before, after=outcome.value)

    async def _request(self, state: State, effect: CallModel, shown: Sequence[Message]) -> ModelRequest:
        assert state.started is not None
        instructions = self._agent.instructions
        if callable(instructions):
            instructions = await call(instructions, self._context(state))
        spec = state.spec or self._agent.spec
        if effect.continues is not None:
            shown = [*shown, Message.user(GO_ON)]
        return ModelRequest(
            instructions=instructions,
            messages=shown,
            tools=(*spec.tools, *state.started.client_tools) if state.started.client_tools else spec.tools,
            settings={**spec.settings, **state.started.settings} if state.started.settings else spec.settings,
            output_schema=spec.output_schema,
            run_id=state.run,
            step=effect.step,
            ordinal=effect.ordinal,
        )

    def _resolved(self, state: State) -> Model:
        if self._model is None:
            named = None if state.started is None else state.started.model
            self._model = self._station.resolve(self._station.model or named or self._agent.model)
        return self._model

    async def _heard(self, model: Model, request: ModelRequest, saying: Saying) -> Heard:
        feed = self._station.feed
        pieces = cast("AsyncIterator[object]", model.stream(request))
        begun = monotonic_ns()
        reply: ModelReply | None = None
        first: int | None = None
        if not hasattr(pieces, "__aiter__"):
            raise self._no_stream(pieces)
        try:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                    break
                if not isinstance(piece, Fragment):
                    raise self._no_stream(piece)
                if first is None:
                    first = _since(begun)
                feed.say(request.run_id, saying, piece)
        finally:
            close = getattr(pieces, "aclose", None)
            if close is not None:
                await close()
        if reply is None:
            raise ModelError("interrupted", "the stream ended without a reply")
        return Heard(request, reply, first)

    def _no_stream(self, found: object) -> UsageError:
        if asyncio.iscoroutine(found):
            found.close()
        name = "" if self._model is None else self._model.name
        return UsageError(
            f"model {name!r} gave a {type(found).__name__}: "
            "its stream() is an async generator of Fragment and one ModelReply"
        )

    def _replied(self, state: State, effect: CallModel, heard: Heard, took: int) -> e.Entry:
        reply = heard.reply
        usage = reply.usage if reply.usage.requests else replace(reply.usage, requests=1)
        parts = self._own_parts(state.turn + (effect.continues is None), reply.parts)
        if not parts and reply.finish != "filter":
            # An empty answer is no turn: it is a failure that is worth another attempt.
            empty = ModelError("provider", "the model replied with nothing")
            return self._failed(state, effect, empty, usage, money(reply.cost))
        size = sum(
            len(part.args_text) if isinstance(part, ToolCall) else len(getattr(part, "text", "")) for part in parts
        )
        if reply.raw is not None:
            size = max(size, sum(memoryview(item).nbytes for item in reply.raw.items))
        if size > VALUE_LIMIT:
            too_large = ModelError("invalid_request", f"the reply has {size} characters, {VALUE_LIMIT} can be kept")
            return self._failed(state, effect, too_large, usage, money(reply.cost))
        replied = e.ModelReplied(
            step=effect.step,
            attempt=effect.attempt,
            parts=parts,
            raw=reply.raw,
            usage=usage,
            cost=money(reply.cost),
            prices=reply.prices,
            finish=reply.finish,
            continues=effect.continues,
            request=e.RequestMade(
                digest=self._digest(heard),
                model="" if self._model is None else self._model.name,
                settings=heard.request.settings,
                messages=len(heard.request.messages),
                tools=len(heard.request.tools),
            ),
            duration=took,
            first_token=heard.first,
        )
        wrong = None if _is_plain(reply) else _unstorable(replied)
        if wrong is not None:
            unstorable = ModelError("invalid_request", f"the reply cannot be stored: {wrong}")
            return self._failed(state, effect, unstorable, usage, money(reply.cost))
        return replied

    def _digest(self, heard: Heard) -> Digest:
        """Of what was sent, where the journal does not say it: made instructions, and what middleware changed."""
        request = heard.request
        sent: list[object] = [request.instructions, request.settings, request.tools, request.output_schema]
        if heard.before is not None and heard.before.by:
            return digest([*sent, list(request.messages)])
        return digest(sent) if callable(self._agent.instructions) else ""

    def _own_parts(self, turn: int, parts: Sequence[Part]) -> tuple[Part, ...]:
        """The parts as they go into the journal: our call ids, arguments held against their schema, clean text."""
        own: list[Part] = []
        place = 0
        for part in parts:
            match part:
                case ToolCall():
                    place += 1
                    own.append(self._own_call(call_step(turn, place), part))
                case Text(text="") | Thinking(text="", signature=None):
                    continue
                case Thinking(signature=str(signature)):
                    own.append(replace(part, text=clean_text(part.text), signature=clean_text(signature)))
                case Text() | Thinking() | Refusal():
                    clean = clean_text(part.text)
                    own.append(part if clean is part.text else replace(part, text=clean))
                case Data():
                    own.append(replace(part, value=cleaned(part.value)))
                case _:
                    own.append(part)
        return tuple(own)

    def _own_call(self, step: str, part: ToolCall) -> ToolCall:
        text = clean_text(part.args_text)
        outcome = attempt_sync(self._validate, step, part.tool, text)
        invalid = complaint(outcome.error) if isinstance(outcome, Raised) else None
        return ToolCall(step, clean_text(part.provider_id), clean_text(part.tool), text, invalid=invalid)

    def _validate(self, step: str, tool_name: str, text: str) -> None:
        """Keeps the arguments for the body: validators are user code, and need not run twice."""
        args = parse_arguments(text)
        tool = self._agent.tool(tool_name)
        if tool is not None:
            self.validated[step] = tool.validate(args)

    def _raised(
        self, flight: Flight, state: State, effect: CallModel, error: BaseException, saying: Saying
    ) -> e.Entry | None:
        if flight.interrupted:
            return cut_off(effect, saying)
        if isinstance(error, asyncio.CancelledError):
            error = ModelError("interrupted", CANCELLED_INSIDE)
        return self._failed(state, effect, error, None, None)

    def broken_off(self, effect: CallModel, state: State) -> Done:
        return Done((self._failed(state, effect, ModelError("interrupted", CANCELLED_INSIDE), None, None),))

    def _failed(
        self, state: State, effect: CallModel, error: BaseException, usage: Usage | None, cost: Decimal | None
    ) -> e.ModelFailed:
        """A transient failure is tried again after a while; any other is final."""
        retry_at: int | None = None
        if isinstance(error, HookFailed):
            class_, message = "middleware", words(error)
        elif isinstance(error, ModelError):
            class_, message = str(error.kind), words(error)
            if error.transient:
                wait = backoff(state.run, effect.step, effect.attempt, error.retry_after)
                retry_at = self._station.store.now() + wait
        else:
            class_, message = type(error).__name__, described(error)
        return e.ModelFailed(
            step=effect.step,
            attempt=effect.attempt,
            class_=class_,
            message=message,
            retry_at=retry_at,
            usage=usage,
            cost=cost,
            model="" if self._model is None else self._model.name,
        )


def _is_plain(reply: ModelReply) -> bool:
    """Whether there is nothing in it but what was made fit part by part."""
    texts = all(isinstance(part, Text | Thinking | ToolCall) for part in reply.parts)
    return texts and reply.raw is None and reply.prices is None and reply.finish in FINISHES and _is_whole(reply.usage)


def _is_whole(usage: Usage) -> bool:
    return type(usage) is Usage and type(usage.input) is type(usage.output) is type(usage.requests) is int


def _unstorable(replied: e.ModelReplied) -> str | None:
    """Why a reply could not be written down, or not be read again."""
    items = () if replied.raw is None else replied.raw.items
    try:
        if (depth := max((nesting(bytes(item).decode()) for item in items), default=0)) > DEEPEST:
            return f"its raw items nest {depth} levels deep, {DEEPEST} is the most"
        codec.decode(codec.encode(replied))
    except (ValueError, TypeError, RecursionError, JournalCorrupt, Unsupported) as error:
        return words(error)
    return None


def complaint(error: BaseException) -> str:
    """What the model is told about arguments that cannot be used."""
    if isinstance(error, RecursionError):
        return "invalid arguments: they nest too deeply"
    known = isinstance(error, ValueError | UsageError)
    return f"invalid arguments: {words(error) if known else described(error)}"


def _since(begun: int) -> int:
    """Microseconds."""
    return (monotonic_ns() - begun) // 1000


def cut_off(effect: CallModel, saying: Saying) -> e.Entry | None:
    """What was said before a cancel: the words are kept, half a call is not."""
    pieces = [piece for piece in saying.pieces if isinstance(piece, Fragment)]
    parts: list[Part] = []
    for place in sorted({piece.part for piece in pieces}):
        mine = [piece for piece in pieces if piece.part == place]
        text = clean_text("".join([piece.text for piece in mine]))
        if text and mine[0].kind == "text":
            parts.append(Text(text))
        elif text and mine[0].kind == "thinking":
            parts.append(Thinking(text))
    if not parts:
        return None
    said = sum(len(part.text) for part in parts if isinstance(part, Text | Thinking))
    usage = Usage(output=said // CHARACTERS_PER_TOKEN + 1, estimated=True, requests=1)
    return e.ModelReplied(step=effect.step, attempt=effect.attempt, parts=tuple(parts), usage=usage, finish="cut_off")
