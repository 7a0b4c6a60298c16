"""How an activation of a run begins: what its first commit says, and whether it may go on at all."""

from collections.abc import Mapping

from msgspec import Struct

from clew.core import entries as e
from clew.core.effects import Effect, Finish
from clew.core.outcomes import Failed
from clew.core.rules import finished
from clew.core.state import State
from clew.core.values import Digest
from clew.ports import HeadMove


class Attach(Struct, frozen=True, kw_only=True):
    """How an activation begins: what its first commit says, unless the start of the run has said it already."""

    entries: tuple[e.Entry, ...] = ()
    heads: tuple[HeadMove, ...] = ()
    blobs: dict[Digest, bytes] = {}
    inbox_seq: int = 0
    agent: e.DriverAttached
    refused: str | None = None  # what has changed, if the agent said that such runs must fail
    retry_at: int | None = None  # when to try again, if what the tools need could not be made
    patience: Mapping[str, int] = {}  # until when doubts have to wait for whoever may be at it yet


def refusal(state: State, attach: Attach) -> tuple[Effect, ...]:
    """The agent changed while the run waited, and it was declared that such runs must not go on."""
    if state.finished is not None:
        return ()
    return (Finish(finished(state, Failed("agent_changed", f"changed since the run began: {attach.refused}"))),)
