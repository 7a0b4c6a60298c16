"""The façade: Runtime, Run, Thread, Result; and an agent run in memory."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from clew.agent import Agent, Decide, ModelLike
from clew.app.result import Diff, Finding, Pruned, Queued, Result
from clew.app.run import Run, Thread
from clew.app.runtime import Runtime
from clew.core.limits import Limits
from clew.core.spec import ModelSettings
from clew.runtime.plan import Input
from clew.runtime.user_code import Raised, attempt, call

__all__ = ["Diff", "Finding", "Pruned", "Queued", "Result", "Run", "Runtime", "Thread", "run_agent", "run_agent_sync"]


async def run_agent(
    agent: Agent[Any, Any],
    input: Input,
    *,
    deps: Any = None,
    model: ModelLike | None = None,
    decide: Decide | None = None,
    limits: Limits | None = None,
    model_settings: ModelSettings | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Result[Any]:
    """The settled result of a run in memory: what `agent.run` does."""
    runtime = Runtime("memory://", agents=[agent], deps=_Given(deps), model=model)
    async with runtime:
        run = await runtime.start(agent, input, limits=limits, model_settings=model_settings, metadata=metadata)
        result = await run.result()
        while decide is not None and await _decided(runtime, result, decide):
            result = await run.result()
        return result


async def _decided(runtime: Runtime, result: Result[Any], decide: Decide) -> bool:
    """Answer what a run asks; whether there was an answer to anything."""
    answers = 0
    for ticket in result.tickets:
        decision = await call(decide, ticket)
        if decision is not None:
            await runtime.decide(ticket, decision, by="decide")
            answers += 1
    return answers > 0


class _Given:
    """Deps as they are, also if they could be called."""

    def __init__(self, deps: Any) -> None:
        self.deps = deps

    def __call__(self, _info: object) -> Any:
        return self.deps


def run_agent_sync(agent: Agent[Any, Any], input: Input, **options: Any) -> Result[Any]:
    """`run_agent` for code without an event loop; under a running one (a notebook) it takes a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_agent(agent, input, **options))
    results: list[Result[Any]] = []
    errors: list[BaseException] = []

    def body() -> None:
        settled = asyncio.run(_settled(agent, input, options))
        if isinstance(settled, BaseException):
            errors.append(settled)
        else:
            results.append(settled)

    thread = threading.Thread(target=body, name="clew-run-sync", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


async def _settled(agent: Agent[Any, Any], input: Input, options: Mapping[str, Any]) -> Result[Any] | BaseException:
    outcome = await attempt(run_agent(agent, input, **options))
    return outcome.error if isinstance(outcome, Raised) else outcome.value
