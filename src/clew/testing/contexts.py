"""A context to call a tool with, in a test of that tool alone."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from clew.agent import NoVerbs, ToolContext

D = TypeVar("D")


def tool_context(
    deps: D,
    *,
    run_id: str = "run",
    attempt: int = 1,
    metadata: Mapping[str, Any] | None = None,
    emit: Callable[[Any], None] | None = None,
) -> ToolContext[D]:
    """The context of a first call of a first turn. `emit` gets what the tool shows as progress."""
    step = "1.tool.1"
    return ToolContext(
        deps=deps,
        run_id=run_id,
        thread_id=run_id,
        agent="agent",
        turn=1,
        metadata=metadata or {},
        verbs=NoVerbs(emit),
        tool="tool",
        call_id=step,
        step_id=step,
        attempt=attempt,
        idempotency_key=f"{run_id}:{step}",
    )
