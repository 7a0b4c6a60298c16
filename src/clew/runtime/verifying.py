"""Asks a tool what became of a call that nobody saw end, and makes a finding of its answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, cast

from clew.agent import Done as Happened
from clew.agent import NotDone, Tool, ToolContext, Unknown
from clew.core import entries as e
from clew.core.calls import Call
from clew.core.effects import Verify
from clew.core.proceeding import step_record
from clew.errors import UsageError
from clew.runtime.flight import Done
from clew.runtime.redact import described
from clew.runtime.station import Station
from clew.runtime.user_code import Raised, attempt
from clew.runtime.values import TooLarge, stored

if TYPE_CHECKING:
    from clew.core.values import Digest

LONGEST = 60.0  # seconds after which an answer that does not come is none
Verification = Callable[[ToolContext[Any]], Any]
log = logging.getLogger("clew.verify")


async def verified(
    station: Station, tool: Tool[Any, Any, Any] | None, context: ToolContext[Any], effect: Verify, found: Call
) -> Done:
    """What `verify` says, as facts. Who raises, hangs, or answers anything else does not know."""
    answer: object = Unknown()
    if tool is not None and tool.verify is not None:
        outcome = await attempt(_asked(station, tool.verify, context))
        if isinstance(outcome, Raised):
            if isinstance(outcome.error, asyncio.CancelledError):
                raise outcome.error
            log.warning("run %s: verify of %s: %s", context.run_id, effect.subject, described(outcome.error))
        else:
            answer = outcome.value
    match answer:
        case Happened(value=value):
            return _happened(tool, effect, found, value)
        case NotDone():
            return Done((_finding(effect, found, "not_done"),))
        case _:
            return Done((_finding(effect, found, "unknown"),))


async def _asked(station: Station, verify: Verification, context: ToolContext[Any]) -> object:
    async with asyncio.timeout(LONGEST):
        if iscoroutinefunction(verify):
            return await verify(context)
        answer: object = await station.threads.run(lambda: verify(context), {})
        return await cast("Awaitable[object]", answer) if isinstance(answer, Awaitable) else answer


def _finding(effect: Verify, found: Call, finding: Any) -> e.DoubtResolved:
    return e.DoubtResolved(step=effect.subject, call=found.id, how="verify", finding=finding, rule="verify")


def _happened(tool: Tool[Any, Any, Any] | None, effect: Verify, found: Call, value: object) -> Done:
    blobs: dict[Digest, bytes] = {}
    try:
        content = stored(value if tool is None else tool.dump(value), blobs)
    except (UsageError, TooLarge) as error:
        content = f"The tool succeeded, but its value cannot be kept: {error}."
    finding = _finding(effect, found, "done")
    if effect.subject == found.id:
        result: e.Entry = e.ToolReturned(
            step=found.id, attempt=found.attempt, call=found.id, content=content, source="verify"
        )
        return Done((finding, result), blobs)
    result = step_record(found, effect.subject, value=content)
    return Done((finding, result), blobs)
