"""Rows of the tables <-> the values of the ports."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from clew import codec
from clew.core.entries import Base, BaseAt, Owner
from clew.core.letters import DecisionLetter
from clew.core.limits import Limits
from clew.core.messages import Usage
from clew.core.outcomes import Outcome
from clew.core.tickets import Ticket
from clew.core.values import Value
from clew.ports import RunInfo
from clew.stores.claims import Lease

encode = msgspec.json.Encoder().encode

_base = msgspec.json.Decoder(Base).decode
_outcome = msgspec.json.Decoder(Outcome).decode
_usage = msgspec.json.Decoder(Usage).decode
_limits = msgspec.json.Decoder(Limits).decode
_names = msgspec.json.Decoder(tuple[str, ...]).decode
_metadata = msgspec.json.Decoder(dict[str, Value]).decode
_ticket = msgspec.json.Decoder(Ticket).decode

NOBODY = Owner(host="", boot="", pid=0, start=0)  # an owner whose row is gone: nobody who still lives


def _json(value: object) -> str | None:
    return None if value is None else encode(value).decode()


def columns(row: RunInfo) -> dict[str, Any]:
    """A run's row as the parameters of its statements."""
    return {
        "id": row.run_id,
        "thread_id": row.thread_id,
        "agent": row.agent,
        "fingerprint": row.fingerprint,
        "origin": row.origin,
        "parent": row.parent,
        "root": row.root,
        "base": _json(row.base),
        "base_run": row.base.run if isinstance(row.base, BaseAt) else None,
        "status": row.status,
        "reasons": _json(row.reasons),
        "message": row.message,
        "tickets": _json(row.tickets),
        "waiting_since": row.waiting_since,
        "outcome": _json(row.outcome),
        "label": row.label,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "updated_at": row.updated_at,
        "finished_at": row.finished_at,
        "turns": row.turns,
        "calls": row.calls,
        "attempts": row.attempts,
        "usage": _json(row.usage),
        "cost": None if row.cost is None else str(row.cost),
        "inherited_usage": _json(row.inherited_usage),
        "budget": _json(row.budget),
        "reserved": _json(row.reserved),
        "metadata": _json(row.metadata),
    }


def run_info(found: Sequence[Any]) -> RunInfo:
    """A row of `runs.select`."""
    return RunInfo(
        run_id=found[0],
        thread_id=found[1],
        agent=found[2],
        fingerprint=found[3],
        origin=found[4],
        parent=found[5],
        root=found[6],
        base=None if found[7] is None else _base(found[7]),
        status=found[8],
        quarantined=bool(found[9]),
        reasons=_names(found[10]),
        message=found[11],
        tickets=_names(found[12]),
        waiting_since=found[13],
        outcome=None if found[14] is None else _outcome(found[14]),
        label=found[15],
        created_at=found[16],
        started_at=found[17],
        updated_at=found[18],
        finished_at=found[19],
        turns=found[20],
        calls=found[21],
        attempts=found[22],
        usage=_usage(found[23]),
        cost=None if found[24] is None else Decimal(found[24]),
        inherited_usage=_usage(found[25]),
        budget=None if found[26] is None else _limits(found[26]),
        reserved=None if found[27] is None else _limits(found[27]),
        seq=found[28],
        inbox_seq=found[29],
        format=found[30],
        wake_at=found[31],
        metadata=_metadata(found[32]),
    )


def lease_of(found: Sequence[Any]) -> Lease:
    """A row of `leases.select`."""
    owner = None
    if found[2] is not None:
        owner = NOBODY if found[14] is None else Owner(*found[14:19])
    return Lease(
        epoch=found[1],
        owner=owner,
        until=found[3],
        place=found[4],
        unclean=found[5],
        not_before=found[6],
        agent=found[7],
        format=found[8],
        ready=bool(found[9]),
        done=bool(found[10]),
        wake_at=found[11],
        quarantined=bool(found[12]),
        inbox_seq=found[13],
    )


def ticket_of(body: bytes) -> Ticket:
    return _ticket(body)


def decision_of(found: Sequence[Any] | None) -> DecisionLetter | None:
    """A row of `letters.decision`, if there is one."""
    letter = None if found is None else codec.decode_letter(found[0])
    return letter if isinstance(letter, DecisionLetter) else None
