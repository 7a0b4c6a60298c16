"""Every error a user can meet, in one tree, sorted by whose move is next.

ClewError
├── UsageError            the caller's code or data is wrong: mend it
├── NotFound              the thing named does not exist
├── Conflict              somebody was faster: read again, then decide again
│   ├── RunBusy           another process drives the run, or the thread is taken
│   ├── StaleWriter       the lease has moved on: this process no longer owns the run
│   ├── InboxMoved        letters came before the end was committed: drain, then decide again
│   ├── RunEnded          the run is finished and takes no more letters
│   ├── AlreadyDecided    the ticket was decided by somebody else
│   └── AlreadyTaken      the message was taken in before it could be changed
├── NoOutput              a result was asked for its output and has none
│   ├── RunWaiting        because the run waits for somebody
│   └── RunFailed         because the run ended otherwise
├── ToolError             a tool tells the model what went wrong
│   └── Rejected          a question was turned down or expired
├── StepFailed            a step inside a tool failed before, and is not run again
├── Fatal                 a tool ends the run
├── ModelError            a model could not reply
├── StoreUnavailable      the store cannot be reached now: try later
│   └── OutcomeUnknown    nobody knows whether the commit happened: take the run again, read, decide
├── JournalCorrupt        what is stored cannot be trusted: stop and look
├── Unsupported           this version, store or backend cannot do that
└── MissingExtra          an optional dependency is not installed
"""

from typing import Literal, get_args

ModelErrorKind = Literal[
    "provider",
    "rate_limited",
    "overloaded",
    "timeout",
    "interrupted",
    "context_overflow",
    "invalid_request",
    "unauthorized",
    "not_found",
    "filtered",
    "all_models_unavailable",
]
TRANSIENT: frozenset[str] = frozenset({"provider", "rate_limited", "overloaded", "timeout", "interrupted"})


class ClewError(Exception):
    """The root of everything Clew raises on purpose."""


class UsageError(ClewError):
    """The caller's code or data is wrong; the message names the remedy."""


class NotFound(ClewError):
    """The run, thread, ticket or message named does not exist."""


class Conflict(ClewError):
    """Somebody was faster: read again, then decide again."""


class RunBusy(Conflict):
    """Another process drives the run (the message names it), or the thread has an active run."""


class StaleWriter(Conflict):
    """The epoch or the sequence has moved: this process no longer owns the run."""


class InboxMoved(Conflict):
    """Letters arrived before an end or a release was committed; nothing was written."""


class RunEnded(Conflict):
    """The run is finished and takes no more letters; nothing was stored."""


class AlreadyDecided(Conflict):
    """The ticket has a decision, which stands."""


class AlreadyTaken(Conflict):
    """The message was taken into the run before it could be changed."""


class NoOutput(ClewError):
    """A result without output was asked for it."""

    def __init__(self, message: str, *, reason: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.detail = detail


class RunWaiting(NoOutput):
    """The run waits for somebody outside."""


class RunFailed(NoOutput):
    """The run ended without an output."""


class ToolError(ClewError):
    """Raised by a tool: the model is told the message. `retry=True` asks for another attempt first."""

    def __init__(self, message: str = "", *, retry: bool = False) -> None:
        super().__init__(message)
        self.retry = retry


class Rejected(ToolError):
    """A question was turned down, or nobody answered in time."""


class StepFailed(ClewError):
    """A recorded step inside a tool failed when it ran: the tool runs again, and is told the same once more."""


class Fatal(ClewError):
    """Raised by a tool: the run ends; calls that started are finished first."""


class ModelError(ClewError):
    """A model could not reply. Transient kinds are tried again, permanent ones end the run."""

    def __init__(self, kind: ModelErrorKind, message: str = "", *, retry_after: float | None = None) -> None:
        if kind not in get_args(ModelErrorKind):
            raise UsageError(f"unknown kind of model error {kind!r}: use one of {', '.join(get_args(ModelErrorKind))}")
        super().__init__(message or kind)
        self.kind: ModelErrorKind = kind
        self.retry_after = retry_after

    @property
    def transient(self) -> bool:
        return self.kind in TRANSIENT


class StoreUnavailable(ClewError):
    """The store cannot be used now; nothing was written."""


class OutcomeUnknown(StoreUnavailable):
    """A commit was cut off: it may or may not have happened."""


class JournalCorrupt(ClewError):
    """What is stored cannot be read or does not fold; the run is set aside, the others go on."""


class Unsupported(ClewError):
    """This version, store or backend cannot do what was asked."""


class MissingExtra(ClewError):
    """An optional dependency is missing; the message names the extra to install."""
