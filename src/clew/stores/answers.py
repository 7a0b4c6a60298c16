"""Holds what somebody answers against the JSON schema that was asked for. The only place that imports jsonschema."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clew.core.limits import Limits, edited
from clew.core.tickets import Decision, Edit, Respond, Ticket
from clew.core.values import unpack
from clew.errors import UsageError

MOST = 5  # problems that are told


def misfit(ticket: Ticket, decision: Decision) -> str | None:
    """What is wrong with the values of a decision, in words for whoever decides; None if they fit."""
    if ticket.schema is None:
        return None
    match ticket.kind, decision:
        case "approval", Edit(args=args):
            return problems(ticket.schema, unpack(args))
        case "limit", Edit(args=args):
            return problems(ticket.schema, unpack(args)) or _no_limits(unpack(args))
        case "question" | "client_tool" | "sign_in", Respond(value=value):
            return problems(ticket.schema, unpack(value))
        case _:
            return None


def _no_limits(args: Mapping[str, Any]) -> str | None:
    """What no schema says: a pattern that does not compile, an amount that is no number."""
    try:
        edited(Limits(), args)
    except UsageError as error:
        return str(error)
    return None


def problems(schema: Mapping[str, Any], value: object) -> str | None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    # An empty registry: a schema from outside must not make us fetch anything.
    validator = Draft202012Validator(dict(schema), registry=Registry())
    errors: Callable[[object], Iterable[Any]] = getattr(validator, "iter_errors")  # noqa: B009 -- its type is half known
    try:
        found = sorted(errors(value), key=lambda error: list(map(str, error.absolute_path)))
    except (SchemaError, Unresolvable, RecursionError) as error:
        return f"its schema cannot be used: {type(error).__name__}"
    told = [f"{'.'.join(map(str, one.absolute_path)) or 'the answer'}: {one.message}" for one in found[:MOST]]
    if len(found) > MOST:
        told.append(f"and {len(found) - MOST} more")
    return "; ".join(told) or None
