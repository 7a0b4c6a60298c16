"""The part of a state that a later run goes on from, as data: what prune, import and export leave of a base."""

from decimal import Decimal
from typing import ClassVar, Literal

from msgspec import Struct

from clew.core.entries import ContextCompacted
from clew.core.messages import Message, Transcript, Usage
from clew.core.state import Call, State
from clew.core.values import Value


class Snapshot(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="snapshot", tag_field="kind"):
    """Everything that `rebase` carries over, and where it was taken."""

    kind: ClassVar[Literal["snapshot"]] = "snapshot"
    run: str
    seq: int
    agent: str = ""
    messages: tuple[Message, ...] = ()
    compacted: tuple[ContextCompacted, ...] = ()
    calls: tuple[Call, ...] = ()
    mail: tuple[Message, ...] = ()
    turn: int = 0
    thread_state: dict[str, Value] = {}
    thread_approvals: tuple[str, ...] = ()
    usage: Usage = Usage()
    cost: Decimal | None = None


def snapshot(state: State) -> Snapshot:
    return Snapshot(
        run=state.run,
        seq=state.seq,
        agent=state.agent,
        messages=tuple(state.transcript),
        compacted=state.compacted,
        calls=state.calls,
        mail=state.mail,
        turn=state.turn,
        thread_state=state.thread_state,
        thread_approvals=state.thread_approvals,
        usage=state.inherited_usage + state.usage,
        cost=state.cost if state.inherited_cost is None else (state.cost or Decimal(0)) + state.inherited_cost,
    )


def restored(taken: Snapshot) -> State:
    """A state that rebases to the same as the one the snapshot was taken of."""
    return State(
        run=taken.run,
        seq=taken.seq,
        agent=taken.agent,
        transcript=Transcript(list(taken.messages)),
        compacted=taken.compacted,
        calls=taken.calls,
        mail=taken.mail,
        turn=taken.turn,
        thread_state=taken.thread_state,
        thread_approvals=taken.thread_approvals,
        usage=taken.usage,
        cost=taken.cost,
    )
