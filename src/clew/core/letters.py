"""What anyone but the driver may leave for a run: durable, numbered without gaps, drained into entries."""

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from clew.core.messages import Message, Usage
from clew.core.outcomes import Outcome
from clew.core.tickets import Decision
from clew.core.values import Money, Value


class Letter(Struct, frozen=True, tag_field="kind", omit_defaults=True, kw_only=True):
    """The envelope: `inbox` is its number in the run's inbox, given by the store."""

    inbox: int = 0
    by: str | None = None


class CancelLetter(Letter, frozen=True, tag="cancel"):
    kind: ClassVar[Literal["cancel"]] = "cancel"
    reason: str = ""


class PauseLetter(Letter, frozen=True, tag="pause"):
    kind: ClassVar[Literal["pause"]] = "pause"
    reason: str = ""


class UnpauseLetter(Letter, frozen=True, tag="unpause"):
    kind: ClassVar[Literal["unpause"]] = "unpause"
    reason: str = ""


class MessageLetter(Letter, frozen=True, tag="message"):
    kind: ClassVar[Literal["message"]] = "message"
    messages: tuple[Message, ...]
    when: Literal["asap", "idle"] = "asap"
    message_id: str = ""


class DecisionLetter(Letter, frozen=True, tag="decision"):
    kind: ClassVar[Literal["decision"]] = "decision"
    ticket: str
    decision_id: str
    decision: Decision
    decided_at: int = 0


class LateResultLetter(Letter, frozen=True, tag="late_result"):
    """What a worker that lost its lease still knows about a call, or about one attempt at it."""

    kind: ClassVar[Literal["late_result"]] = "late_result"
    call: str
    from_epoch: int
    attempt: int = 1
    value: Value = None
    error: str | None = None


class ChildEndLetter(Letter, frozen=True, tag="child_end"):
    kind: ClassVar[Literal["child_end"]] = "child_end"
    run: str
    outcome: Outcome
    output: Value = None
    usage: Usage = Usage()
    cost: Money | None = None


AnyLetter: TypeAlias = (
    CancelLetter | PauseLetter | UnpauseLetter | MessageLetter | DecisionLetter | LateResultLetter | ChildEndLetter
)
