"""`clew schema`: what --json prints, as JSON Schema."""

from typing import Any

import click
import msgspec

from clew.cli.common import shared
from clew.cli.output import print_json
from clew.core.deltas import Delta
from clew.core.entries import Entry
from clew.core.messages import Message, Usage
from clew.core.tickets import Ticket
from clew.policy.rules import ORDER
from clew.ports import RunInfo

REF = "#/$defs/{name}"
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
WHOLE = {"type": "integer"}
COUNTS = {"type": "object", "additionalProperties": WHOLE}
# By command: what one line of its output is.
LINES = (
    "demo",
    "run",
    "runs",
    "show",
    "watch",
    "watch-all",
    "tickets",
    "decide",
    "cancel",
    "worker",
    "check",
    "torture",
    "error",
)


@click.command("schema", short_help="Print what --json prints, as JSON Schema.", epilog="Example: clew schema runs")
@click.argument("line", type=click.Choice(LINES), required=False)
@shared
def command(line: str | None) -> None:
    """Print the JSON Schema of what a command prints with --json: one object a line. Without LINE: of all of them.

    Fields are added now and then; none is renamed or removed.
    """
    print_json(schema(line))


def schema(line: str | None = None) -> dict[str, Any]:
    """The schema of one command's lines, or of all of them under $defs."""
    (entry, delta, info, ticket, message, usage), defs = msgspec.json.schema_components(
        (Entry, Delta, RunInfo, Ticket, Message, Usage), ref_template=REF
    )
    lines = {
        "runs": _with(info, {"reason": TEXT}),
        "show": _object({"run": {"$ref": "#/$defs/runs"}, "entries": {"type": "array", "items": entry}}),
        "watch": {"anyOf": [entry, delta]},
        "watch-all": _object({"cursor": TEXT, "run_id": TEXT, "entry": entry}),
        "tickets": _with(ticket, {"ref": TEXT}),
        "decide": {"$ref": "#/$defs/tickets"},
        "cancel": {"$ref": "#/$defs/runs"},
        "run": _object(
            {
                "run_id": TEXT,
                "thread_id": TEXT,
                "status": {"enum": ["done", "waiting"]},
                "reason": TEXT,
                "detail": TEXT,
                "ok": {"type": "boolean"},
                "output": {},
                "text": TEXT,
                "tickets": {"type": "array", "items": _with(ticket, {"ref": TEXT})},
                "usage": usage,
                "cost": {"type": ["string", "null"]},
                "turns": WHOLE,
                "messages": {"type": "array", "items": message},
            }
        ),
    }
    lines |= PLAIN
    chosen = {"$ref": f"#/$defs/{line}"} if line is not None else {"anyOf": [{"$ref": f"#/$defs/{x}"} for x in LINES]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **chosen, "$defs": {**defs, **lines}}


def _object(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _with(base: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    return {"allOf": [base, _object(fields)]}


# Lines that hold nothing of the journal.
PLAIN: dict[str, Any] = {
    "worker": _object(
        {
            "event": {"enum": ["ready", "holding", "draining", "drained"]},
            "pid": WHOLE,
            "agents": TEXTS,
            "runs": TEXTS,
        }
    ),
    "check": _object(
        {
            "agent": TEXT,
            "tool": TEXT,
            "args": {"type": "object"},
            "verdict": {"enum": [*ORDER, "invalid"]},
            "rule": TEXT,
            "reason": TEXT,
            "matched": {
                "type": "array",
                "items": _object({"rule": TEXT, "verdict": {"enum": list(ORDER)}, "reason": TEXT}),
            },
            "asked_without_deps": TEXTS,
            "not_asked": TEXTS,
        }
    ),
    "torture": _object(
        {
            "ok": {"type": "boolean"},
            "points": WHOLE,
            "repeated": TEXTS,
            "differing": TEXTS,
            "wrong": TEXTS,
            "rerun": COUNTS,
            "doubts": WHOLE,
            "calm": TEXT,
        }
    ),
    "error": _object({"error": _object({"kind": TEXT, "message": TEXT})}),
    "demo": _object({"folder": TEXT, "paid": COUNTS}),
}
