"""What Clew needs from the outside world: small Protocols, and the values that cross them."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from clew.core.deltas import Delta
from clew.core.entries import Base, Entry, Finish, Origin, Owner, RunStarted
from clew.core.letters import AnyLetter, DecisionLetter
from clew.core.limits import Limits
from clew.core.messages import Message, Part, RawReply, ToolCall, Usage, calls_of, text_of
from clew.core.outcomes import Outcome
from clew.core.spec import ToolSpec
from clew.core.tickets import Decision, Ticket
from clew.core.values import Digest, Money, Value

# --- models -----------------------------------------------------------------------------------------------------------


class ModelRequest(Struct, frozen=True, kw_only=True, gc=False):
    """What a model is asked. `ordinal` counts the run's earlier answers and failures, the same after any crash."""

    instructions: str = ""
    messages: Sequence[Message] = ()
    tools: tuple[ToolSpec, ...] = ()
    settings: dict[str, Value] = {}
    output_schema: dict[str, Any] | None = None
    run_id: str = ""
    step: str = ""
    ordinal: int = 0


class ModelReply(Struct, frozen=True, kw_only=True, gc=False):
    """What a model answered. Ids of calls are the provider's; the runtime gives its own."""

    parts: tuple[Part, ...] = ()
    usage: Usage = Usage()
    finish: Finish = "stop"
    raw: RawReply | None = None
    cost: Money | None = None
    prices: dict[str, Value] | None = None

    @property
    def text(self) -> str:
        return text_of(self.parts)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return calls_of(self.parts)


class Fragment(Struct, frozen=True, gc=False):
    """A piece of a reply on its way. `part` is the place of the part it belongs to, from 0."""

    kind: Literal["text", "thinking", "tool_args"]
    text: str
    part: int = 0


@runtime_checkable
class Model(Protocol):
    """One language model. `stream` yields fragments, then exactly one reply; it raises ModelError and never retries."""

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]: ...


# --- time -------------------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """The source of a store's time. The default reads the machine; a VirtualClock is moved by tests."""

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        ...

    def boottime(self) -> int:
        """Microseconds that leases are measured in: never set back, counts sleep."""
        ...


# --- fragments between processes --------------------------------------------------------------------------------------


class Relayed(Struct, frozen=True, gc=False):
    """A fragment on its way to another process; `after` is the entry that its watchers must have seen before it."""

    after: int
    delta: Delta


class Ear(Protocol):
    """Somebody who listens to one run here; while it is open, whoever drives that run relays what is said."""

    def heard(self) -> list[Relayed]:
        """What is new since the last look; all of it again if it had to be said anew."""
        ...

    def close(self) -> None: ...


class Relay(Protocol):
    """Carries fragments to watchers in other processes, as well as it can: what it loses, the entry makes good.

    It never blocks and never raises: a run must not suffer from who watches it.
    """

    def wanted(self, runs: Collection[str]) -> set[str]:
        """Those of these runs that somebody listens to: one look, however many there are."""
        ...

    def say(self, run: str, fragments: Sequence[Relayed]) -> bool:
        """Pass these on, after those before. False: what was said before is lost, say everything anew."""
        ...

    def hush(self, run: str) -> None:
        """All that was said is superseded."""
        ...

    def attend(self, run: str) -> Ear: ...


# --- stores -----------------------------------------------------------------------------------------------------------

Status = Literal["queued", "running", "waiting", "done"]


class RunInfo(Struct, frozen=True, kw_only=True):
    """The row of a run: a projection of its journal, written with it. Counters are exact once the run has settled."""

    run_id: str
    thread_id: str = ""
    agent: str = ""
    fingerprint: Digest = ""
    origin: Origin = "user"
    parent: str | None = None
    root: str = ""
    base: Base | None = None
    status: Status = "running"
    quarantined: bool = False
    reasons: tuple[str, ...] = ()
    message: str = ""
    tickets: tuple[str, ...] = ()
    waiting_since: int | None = None
    outcome: Outcome | None = None
    label: str = ""
    created_at: int = 0
    started_at: int | None = None
    updated_at: int = 0
    finished_at: int | None = None
    turns: int = 0
    calls: int = 0
    attempts: int = 0
    usage: Usage = Usage()
    cost: Money | None = None
    inherited_usage: Usage = Usage()
    budget: Limits | None = None
    reserved: Limits | None = None
    seq: int = 0
    inbox_seq: int = 0
    format: int = 1
    wake_at: int | None = None
    metadata: dict[str, Value] = {}

    @property
    def id(self) -> str:
        return self.run_id

    @property
    def reason(self) -> str:
        """The first reason for waiting, or how the run ended."""
        if self.outcome is not None:
            return str(self.outcome)
        return self.reasons[0] if self.reasons else ""


class Projection(Struct, frozen=True, kw_only=True, gc=False):
    """What a batch says of the run's row. `None` leaves the counters of the row as they are."""

    status: Status
    reasons: tuple[str, ...] = ()
    message: str = ""
    tickets: tuple[str, ...] = ()
    outcome: Outcome | None = None
    turns: int = 0
    calls: int = 0
    attempts: int = 0
    usage: Usage = Usage()
    cost: Money | None = None
    inherited_usage: Usage = Usage()
    wake_at: int | None = None


class HeadMove(Struct, frozen=True):
    """A thread's head goes from `expected` (None: the thread is new or empty) to `new`."""

    thread: str
    expected: str | None
    new: str


class NewRun(Struct, frozen=True, kw_only=True, gc=False):
    """A run to be made. Its first entry is run_started; with `owner` the lease is taken in the same transaction.

    A thread is busy while its head is unfinished or somebody is queued behind it. `place="head"`: the run becomes the
    head of a thread that is not busy. `place="queue"`: it is queued behind a busy one. Either way the thread's head
    must be `expected`. `place="apart"`: no thread is touched.
    """

    run: str
    entries: tuple[Entry, ...]
    thread: str = ""
    place: Literal["head", "queue", "apart"] = "apart"
    expected: str | None = None
    blobs: Mapping[Digest, bytes] = {}
    owner: Owner | None = None
    lease: int = 0

    @property
    def started(self) -> RunStarted:
        first = self.entries[0]
        assert isinstance(first, RunStarted)
        return first


class Started(Struct, frozen=True):
    """`created` is false if the run was there already with the same start digest."""

    run: str
    created: bool
    inbox_seq: int = 0


class Batch(Struct, frozen=True, kw_only=True, gc=False):
    """One write to a journal, all or nothing.

    `taken`: letters that became entries; one withdrawn or changed since `inbox_seen` refuses the batch (InboxMoved).
    `posts`: letters to other runs; what is posted to a run that is finished, pruned or unknown is dropped: the sender
    goes on whatever became of the other. `starts` are made before `heads` move, and those before the run's own end is
    seen. `tickets`: the rows of those that are opened, with what the journal says of their calls; a ticket that has a
    row keeps it. A batch that holds run_finished gives the lease up, whatever `lease` says, and lets the thread's queue
    go on.
    """

    run: str
    epoch: int
    after_seq: int
    inbox_seen: int
    entries: tuple[Entry, ...] = ()
    taken: tuple[int, ...] = ()
    posts: tuple[tuple[str, AnyLetter], ...] = ()
    starts: tuple[NewRun, ...] = ()
    heads: tuple[HeadMove, ...] = ()
    blobs: Mapping[Digest, bytes] = {}
    projection: Projection | None = None
    tickets: tuple[Ticket, ...] = ()
    lease: Literal["keep", "release"] = "keep"


class Receipt(Struct, frozen=True, gc=False):
    """`inbox_seq` is the number of the newest letter: above what the driver has seen, there is mail."""

    inbox_seq: int


class Claim(Struct, frozen=True, kw_only=True):
    """The right to drive a run. `unclean` counts how often its drivers died in this very place."""

    run: str
    epoch: int
    agent: str
    format: int
    seq: int
    inbox_seq: int
    unclean: int = 0


class LeaseInfo(Struct, frozen=True, kw_only=True):
    run: str
    epoch: int
    owner: Owner | None
    until: int
    place: int
    unclean: int
    not_before: int
    alive: bool


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first; `after` is the id the last page ended with."""

    status: Status | Literal["quarantined"] | None = None
    agent: str | None = None
    thread_id: str | None = None
    root: str | None = None
    limit: int = 100
    after: str | None = None


class TicketFilter(Struct, frozen=True, kw_only=True):
    run_id: str | None = None
    agent: str | None = None
    thread_id: str | None = None
    kind: str | None = None
    ticket: str | None = None
    closed: bool = False
    limit: int = 100
    after: str | None = None


class ThreadInfo(Struct, frozen=True, kw_only=True):
    """A named conversation: its head run, whether that is finished and where it ended, and who waits behind it."""

    thread_id: str
    head: str | None = None
    head_seq: int = 0
    head_done: bool = True
    queue: tuple[str, ...] = ()
    created_at: int = 0
    updated_at: int = 0
    metadata: dict[str, Value] = {}


class Listener(Protocol):
    """Called on the event loop after a change by any process; `None`: some runs changed, it is not known which."""

    def __call__(self, run: str | None, /) -> None: ...


class Store(Protocol):
    """Where journals, inboxes and leases are kept. `clew.testing.StoreContract` says in tests what each verb means."""

    @property
    def relay(self) -> Relay | None:
        """How fragments reach watchers in other processes; None if no other process shares this store."""
        ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def now(self) -> int:
        """The store's time: microseconds UTC, never below what it has stamped."""
        ...

    async def start(self, new: NewRun) -> Started:
        """Raises Conflict if the id is taken by another start digest, or if the thread is not as expected."""
        ...

    async def commit(self, batch: Batch) -> Receipt:
        """Raises StaleWriter, InboxMoved, StoreUnavailable (nothing was written) or OutcomeUnknown."""
        ...

    async def post(self, run: str, letter: AnyLetter) -> int:
        """The letter's number once it is durable. Raises NotFound, or RunEnded from the same transaction."""
        ...

    async def inbox(self, run: str) -> list[AnyLetter]:
        """The letters not taken yet, in order."""
        ...

    async def mailed(self, seen: Mapping[str, int]) -> list[str]:
        """Of these runs, those whose newest letter is above the number given."""
        ...

    async def withdraw(self, run: str, inbox: int, replacement: AnyLetter | None = None) -> None:
        """Take a message back, or put another in its place, which moves `inbox_seq` so that the driver reads again.

        Raises AlreadyTaken once a commit took it, UsageError for letters that are no messages.
        """
        ...

    async def decide(self, run: str, letter: DecisionLetter) -> Ticket:
        """Store the first decision of an open ticket and its letter. Raises AlreadyDecided, NotFound, UsageError."""
        ...

    async def claim(
        self,
        owner: Owner,
        *,
        lease: int,
        run: str | None = None,
        agents: Collection[str] | None = None,
        limit: int = 1,
        suspects: bool = True,
    ) -> list[Claim]:
        """Take runs that have something to do and no living owner, at most one of them a suspect.

        With `run`, that one, even if it waits or pauses after deaths, or RunBusy naming its owner, RunEnded, or
        JournalCorrupt if it is quarantined; `agents`, `limit` and `suspects` count for nothing then.
        """
        ...

    async def retake(self, owner: Owner, run: str, epoch: int, *, lease: int) -> Claim:
        """One's own run again under the next epoch, uncounted: after OutcomeUnknown, before anything is decided.

        Fences whatever became of the lost commit. Raises StaleWriter if another process has the run, or RunEnded.
        """
        ...

    def renew(self, owner: Owner, held: Mapping[str, int], lease: int) -> set[str]:
        """The runs whose lease still stands, now for longer. Called from the renewal thread."""
        ...

    async def give_back(self, run: str, epoch: int, *, pause: int = 0) -> None:
        """End a lease uncounted, leaving the run as it is: for what this process cannot read or drive.

        Nobody claims it for `pause` microseconds, or a look for work would find it again at once.
        """
        ...

    async def lease(self, run: str) -> LeaseInfo: ...
    async def is_gone(self, owner: Owner) -> bool:
        """Whether a process is known to be dead, so that nothing it started goes on."""
        ...

    async def read(self, run: str, after: int = 0, until: int | None = None) -> list[Entry]: ...
    async def read_raw(self, run: str, after: int = 0) -> list[bytes]: ...
    async def entries_since(self, cursor: str | None, limit: int = 500) -> tuple[list[tuple[str, Entry, str]], str]:
        """(run, entry, cursor behind it) of all runs in commit order, after an opaque cursor (None: from the first).

        Beside them the cursor to go on from, which moves past what cannot be read as well.
        """
        ...

    async def cursor(self) -> str:
        """The cursor that stands behind the newest entry."""
        ...

    async def blobs(self, digests: Collection[Digest]) -> dict[Digest, bytes]: ...
    async def info(self, run: str) -> RunInfo:
        """The row of a run, of an alias, or NotFound; a tombstone's row holds what is left of a pruned run."""
        ...

    async def runs(self, which: RunFilter) -> list[RunInfo]: ...
    async def thread(self, thread_id: str) -> ThreadInfo | None: ...
    async def threads(self, *, limit: int = 100, after: str | None = None) -> list[ThreadInfo]: ...
    async def tickets(self, which: TicketFilter) -> list[Ticket]: ...
    async def decision(self, run: str, ticket: str) -> DecisionLetter | None: ...
    async def alias(self, name: str, run: str) -> None: ...
    async def quarantine(self, run: str, on: bool) -> None: ...
    async def prune(self, runs: Collection[str]) -> int:
        """Remove finished runs, leaving tombstones; answers how many entries went."""
        ...

    async def next_wake(self, agents: Collection[str] | None = None) -> int | None:
        """When the next waiting run (of these agents) is due, by the store's time; runs that are driven do not wait."""
        ...

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Hear of changes by any process within 100 ms; the answer ends it."""
        ...


__all__ = [
    "AnyLetter",
    "Batch",
    "Claim",
    "Clock",
    "Decision",
    "Ear",
    "Fragment",
    "HeadMove",
    "LeaseInfo",
    "Listener",
    "Model",
    "ModelReply",
    "ModelRequest",
    "NewRun",
    "Projection",
    "Receipt",
    "Relay",
    "Relayed",
    "RunFilter",
    "RunInfo",
    "Started",
    "Status",
    "Store",
    "ThreadInfo",
    "TicketFilter",
]
