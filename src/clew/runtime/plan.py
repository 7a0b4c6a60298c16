"""What a start means: the first entries of a run, its place in its thread, the digest that makes it idempotent."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from clew import codec
from clew.agent import Agent, ClientTool
from clew.agent.shapes import provider_and_name
from clew.core import entries as e
from clew.core.letters import AnyLetter
from clew.core.limits import Limits
from clew.core.messages import Data, Media, Message, Part, Role, ToolCall, ToolResult, as_part
from clew.core.spec import ModelSettings, ToolSpec
from clew.core.values import INLINE_LIMIT, VALUE_LIMIT, Digest, check_text, digest, encoded, pack
from clew.errors import JournalCorrupt, Unsupported, UsageError
from clew.ports import NewRun, ThreadInfo
from clew.runtime.values import aside

Input: TypeAlias = str | Sequence[str | Part | Message]
OnBusy = Literal["enqueue", "reject", "interrupt", "steer"]

_RUN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_LONGEST_THREAD = 256
_SHOWN = 40


# What an agent may declare today and a later release will do; until then it is refused rather than ignored.
LATER_FEATURES = (
    "handoffs",
    "skills",
    "context",
    "require_by",
)


class StartPlan(Struct, frozen=True, kw_only=True):
    """A start as it was asked for, checked and in journal form."""

    run: str
    agent: str
    fingerprint: Digest
    spec: bytes
    input: tuple[Message, ...]
    limits: Limits
    thread: str | None
    model: str | None
    settings: dict[str, Any]
    client_tools: tuple[ToolSpec, ...]
    metadata: dict[str, Any]
    trace: e.Trace | None
    digest: Digest
    blobs: Mapping[Digest, bytes] = {}

    def run_for(self, thread: ThreadInfo | None) -> NewRun:
        """The run at its place: behind the thread's active run, or going on from where its head ended."""
        name = self.thread or self.run
        base: e.Base | None = None
        place: Literal["head", "queue"] = "head"
        head = None if thread is None else thread.head
        if thread is not None and head is not None:
            if not thread.head_done or thread.queue:
                place, base = "queue", e.BaseThread()
            else:
                base = e.BaseAt(head, thread.head_seq)
        started = e.RunStarted(
            input=self.input,
            agent=self.agent,
            fingerprint=self.fingerprint,
            limits=self.limits,
            settings=self.settings,
            model=self.model,
            client_tools=self.client_tools,
            base=base,
            thread=name,
            root=self.run,
            trace=self.trace,
            start_digest=self.digest,
            metadata=self.metadata,
        )
        return NewRun(
            run=self.run,
            entries=(started,),
            thread=name,
            place=place,
            expected=head,
            blobs={self.fingerprint: self.spec, **self.blobs},
        )


class Wishes(Struct, frozen=True, kw_only=True):
    """What a caller may say about a start beside agent and input; `None` is left to the agent."""

    thread_id: str | None = None
    model: object = None
    limits: Limits | None = None
    settings: ModelSettings | None = None
    client_tools: tuple[ToolSpec, ...] = ()
    trace: Mapping[str, str] | None = None
    metadata: Mapping[str, Any] | None = None


def plan_start(run: str, agent: Agent[Any, Any], given: Input, wishes: Wishes) -> StartPlan:
    """Raises UsageError for anything that no run could be made of; nothing is stored by then."""
    check_agent(agent)
    spec = agent.spec
    messages = as_messages(given)
    limits = agent.limits if wishes.limits is None else wishes.limits
    _check_kinds(wishes)
    model = model_name(wishes.model)
    settings: dict[str, Any] = {} if wishes.settings is None else pack(wishes.settings.given())
    stated: list[object] = [
        agent.name,
        [[message.role, message.parts] for message in messages],
        wishes.thread_id,
        model,
        list(wishes.client_tools),
        None if wishes.limits is None else wishes.limits,
        settings,
    ]
    blobs: dict[Digest, bytes] = {}
    return StartPlan(
        run=checked_run_id(run),
        agent=agent.name,
        fingerprint=agent.fingerprint,
        spec=codec.encode_spec(spec),
        input=aside(messages, blobs),
        blobs=blobs,
        limits=limits,
        thread=None if wishes.thread_id is None else checked_thread_id(wishes.thread_id),
        model=model,
        settings=settings,
        client_tools=wishes.client_tools,
        metadata=_metadata(wishes.metadata),
        trace=None if wishes.trace is None else e.Trace(**wishes.trace),
        digest=digest(stated),
    )


def _check_kinds(wishes: Wishes) -> None:
    for name, given, kind in (
        ("limits", wishes.limits, Limits),
        ("model_settings", wishes.settings, ModelSettings),
        ("metadata", wishes.metadata, Mapping),
        ("trace", wishes.trace, Mapping),
    ):
        if not isinstance(cast("object", given), kind | None):
            raise UsageError(f"{name}={given!r}: give a {kind.__name__}")
    unknown = set(wishes.trace or ()) - set(e.Trace.__struct_fields__)
    if unknown:
        raise UsageError(f"trace= has no {sorted(unknown)}: it takes {', '.join(e.Trace.__struct_fields__)}")


def stamped(new: NewRun, now: int) -> NewRun:
    """The first entries under their place and time; they are one commit."""
    for seq, entry in enumerate(new.entries, start=1):
        for field, value in (("seq", seq), ("at", now), ("epoch", 1 if new.owner is not None else 0), ("batch", 1)):
            force_setattr(entry, field, value)
    if (wrong := unreadable(codec.encode, codec.decode, new.started)) is not None:
        raise UsageError(f"run {new.run!r} cannot be stored: {wrong}")
    return new


def checked_letter(letter: AnyLetter) -> AnyLetter:
    """The letter itself. Raises UsageError for one that its reader could not decode."""
    if (wrong := unreadable(codec.encode_letter, codec.decode_letter, letter)) is not None:
        raise UsageError(f"this cannot be sent to a run: {wrong}")
    return letter


def unreadable(encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], thing: object) -> str | None:
    """Why a thing could not be written down and read again, if it could not."""
    try:
        decode(encode(thing))
    except (ValueError, TypeError, RecursionError, JournalCorrupt, Unsupported) as error:
        return str(error)
    return None


def check_agent(agent: object) -> None:
    """Refuse what is no agent, and what this release cannot run, before anything is stored."""
    if not isinstance(agent, Agent):
        raise UsageError(f"{agent!r} is not an Agent: define one with Agent(name, model=…)")
    declared = cast("Any", agent).declared
    for feature in LATER_FEATURES:
        if getattr(declared, feature) not in ((), None, False, "tell"):
            raise UsageError(f"agent {agent.name!r} has {feature}, which this release cannot run yet: leave it out")


def as_messages(given: object) -> tuple[Message, ...]:
    """Text, parts or messages as messages of the journal, without ids of their own."""
    if isinstance(given, str):
        messages: tuple[Message, ...] = (Message.user(given),)
    elif isinstance(given, Message):
        messages = (given,)
    elif isinstance(given, Sequence) and not isinstance(given, bytes | bytearray):
        messages = _from_items(cast("Sequence[object]", given))
    else:
        raise UsageError(f"the input is a {type(given).__name__}: give text, parts or messages")
    if not messages:
        raise UsageError("the input is empty: give the run something to start from")
    checked = tuple([_message(message) for message in messages])
    _check_calls(checked)
    try:
        size = len(encoded(checked))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the input cannot be stored as JSON ({error}): give text, parts or messages") from error
    if size > VALUE_LIMIT:
        raise UsageError(
            f"the input has {size} bytes, {VALUE_LIMIT} is the most: put it in a file and pass its address"
        )
    return checked


def _message(message: Message) -> Message:
    if message.role not in get_args(Role):
        raise UsageError(f"a message has the role {message.role!r}: use {', '.join(get_args(Role))}")
    parts = cast("object", message.parts)
    if not isinstance(parts, tuple | list):
        raise UsageError(f"the parts of a message are a {type(parts).__name__}: say Message.user(…)")
    return Message(message.role, tuple([_checked(as_part(part)) for part in cast("Sequence[object]", parts)]))


def _check_calls(messages: Sequence[Message]) -> None:
    """A history that is given has a result for each call, in order, right after it: no provider takes another."""
    open_calls: list[str] = []
    for message in messages:
        found = [part.call for part in message.parts if isinstance(part, ToolResult)]
        if found != open_calls[: len(found)] or (open_calls and not found):
            raise UsageError(
                f"the input has the results {found} where those of the calls {open_calls} belong: "
                "give each call its result, right after it and in order, or leave both out"
            )
        del open_calls[: len(found)]
        open_calls = open_calls or [part.call for part in message.parts if isinstance(part, ToolCall)]
    if open_calls:
        raise UsageError(f"the input has calls without results, {open_calls}: give each its result, or leave it out")


def _from_items(items: Sequence[object]) -> tuple[Message, ...]:
    """Messages as they are; loose text and parts between them become user messages."""
    messages: list[Message] = []
    loose: list[Part] = []
    for item in items:
        if isinstance(item, Message):
            if loose:
                messages.append(Message("user", tuple(loose)))
                loose = []
            messages.append(item)
        else:
            loose.append(as_part(item))
    if loose:
        messages.append(Message("user", tuple(loose)))
    return tuple(messages)


def _checked(part: Part) -> Part:
    """The part with its values in journal form; its texts are what a journal can hold."""
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, str):
            check_text(value)
    match part:
        case Data(value=value):
            return replace(part, value=pack(value))
        case ToolResult(content=content):
            return replace(part, content=pack(content))
        case Media(blob=blob):
            return part if blob is None else replace(part, blob=pack(blob))
        case _:
            return part


def client_specs(tools: Sequence[object]) -> tuple[ToolSpec, ...]:
    if not isinstance(cast("object", tools), Sequence):
        raise UsageError(f"client_tools= takes a list of ClientTool(name, schema), not {tools!r}")
    specs: list[ToolSpec] = []
    for tool in tools:
        if not isinstance(tool, ClientTool):
            raise UsageError(f"client_tools= takes ClientTool(name, schema), not {tool!r}")
        specs.append(tool.spec)
    return tuple(specs)


def checked_run_id(run: object) -> str:
    if not isinstance(run, str) or not _RUN_ID.fullmatch(run):
        raise UsageError(f"{_shown(run)} cannot be a run id: use 1 to 128 of the characters A-Z a-z 0-9 _ . : -")
    return run


def checked_thread_id(thread: object) -> str:
    if not isinstance(thread, str) or not thread.strip() or len(thread) > _LONGEST_THREAD or not thread.isprintable():
        raise UsageError(f"a thread id is 1 to {_LONGEST_THREAD} printable characters, not {_shown(thread)}")
    return check_text(thread)


def _shown(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def model_name(model: object) -> str | None:
    """How a model given at start is written down: a name that any process can resolve."""
    if model is None:
        return None
    if isinstance(model, str):
        provider_and_name(check_text(model))
        return model
    raise UsageError("model= at start is 'provider:name', so that any process can go on: give a Model to the Agent")


def _metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    if metadata is None:
        return {}
    packed = pack(dict(metadata))
    if "$literal" in packed:
        raise UsageError("metadata keys do not begin with '$'")
    if (size := len(encoded(packed))) > INLINE_LIMIT:
        raise UsageError(
            f"the metadata has {size} bytes, {INLINE_LIMIT} is the most: store it elsewhere and name it here"
        )
    return dict(packed)
