"""`clew check`: the verdict on a call, before any model asks for it, and the rules that came to it."""

import json
from collections.abc import Callable
from typing import Any

import click
from msgspec import Struct

from clew.agent import Agent, RunContext, Tool
from clew.agent.shapes import label
from clew.cli.common import Common, perform, shared
from clew.cli.output import harmless, print_json, say
from clew.cli.target import load
from clew.core.messages import ToolCall
from clew.core.values import parse_arguments
from clew.errors import UsageError
from clew.policy import Rule, Verdict
from clew.runtime.asking import complaint
from clew.runtime.judging import Opinion, answered_by, decisive, matching, opinion_of, whole_arguments
from clew.runtime.user_code import Raised, attempt_sync
from clew.runtime.user_code import call as call_user

BY_DEFAULT = "by default"
COLOURS = {"block": "red", "deny": "red", "invalid": "red", "ask": "yellow", "answer": "yellow", "allow": "green"}


class Explained(Struct, frozen=True):
    """What would become of a call, and why. `not_asked`: whose word counts in a run and not here."""

    agent: str
    tool: str
    args: dict[str, Any]
    verdict: str
    rule: str
    reason: str
    matched: list[dict[str, str]]
    asked_without_deps: list[str]
    not_asked: list[str]


@click.command(
    "check",
    epilog="""Example: clew check app:agent pay '{"amount": 500}'. Nothing runs, and nothing is stored.""",
)
@click.argument("target")
@click.argument("tool")
@click.argument("args", required=False, default="{}", metavar="[JSON-ARGS]")
@click.option("--agent", help="Which, if the target is a Runtime with several.")
@shared
@click.pass_obj
def command(common: Common, target: str, tool: str, args: str, agent: str | None) -> None:
    """Tell whether a call may run: the verdict, the rule that gives it, and every rule that matches.

    Functions of the policy are asked as well, without deps and outside of a run; middleware is not.
    """
    explained = perform(_explained(load(target).one_agent(agent), tool, _parsed(args)))
    if common.json:
        print_json({name: getattr(explained, name) for name in Explained.__struct_fields__})
    else:
        _print(explained)


def _parsed(text: str) -> dict[str, Any]:
    parsed = attempt_sync(parse_arguments, text)
    if isinstance(parsed, Raised):
        raise UsageError(f"these arguments are no JSON object: {parsed.error}")
    return parsed.value


async def _explained(agent: Agent[Any, Any], name: str, args: dict[str, Any]) -> Explained:
    tool = agent.tool(name)
    known = [tool.name for tool in agent.tools] + [tool.name for tool in agent.client_tools]
    if name not in known:
        raise UsageError(f"agent {agent.name!r} has no tool {name!r}: it has {', '.join(known) or 'none'}")
    whole = attempt_sync(whole_arguments, tool, args, None) if tool is not None else None
    if isinstance(whole, Raised):
        return Explained(agent.name, name, args, "invalid", "arguments", complaint(whole.error), [], [], [])
    opinions = matching([rule for rule in agent.policy if isinstance(rule, Rule)], name, args)
    context = RunContext(deps=None, agent=agent.name)
    asked: list[str] = []
    request = ToolCall("1.tool.1", tool=name).with_args(args)
    for judge in [one for one in agent.policy if not isinstance(one, Rule)]:
        asked.append(label(judge))
        opinions += await _said(label(judge), judge, context, request)
    opinions += [] if tool is None or whole is None else await _approval(tool, context, whole.value, asked)
    told = decisive(opinions)
    return Explained(
        agent=agent.name,
        tool=name,
        args=args,
        verdict="allow" if told is None else told.verdict.kind,
        rule=BY_DEFAULT if told is None else told.rule,
        reason="" if told is None else told.verdict.reason,
        matched=[{"rule": one.rule, "verdict": one.verdict.kind, "reason": one.verdict.reason} for one in opinions],
        asked_without_deps=asked,
        not_asked=[f"{label(one)}.before_tool" for one in agent.middleware if _rewrites(one)],
    )


async def _approval(
    tool: Tool[Any, Any, Any], context: RunContext[Any], args: dict[str, Any], asked: list[str]
) -> list[Opinion]:
    if not callable(tool.needs_approval):
        return [Opinion(Verdict("ask"), "needs_approval")] if tool.needs_approval else []
    asked.append("needs_approval")
    return await _said("needs_approval", tool.needs_approval, context, args)


async def _said(name: str, judge: Callable[..., Any], *args: object) -> list[Opinion]:
    opinion = opinion_of(name, await answered_by(lambda: call_user(judge, *args)))
    return [] if opinion is None else [opinion]


def _rewrites(middleware: object) -> bool:
    from clew.policy import Middleware

    return getattr(type(middleware), "before_tool", None) is not Middleware.before_tool


def _print(explained: Explained) -> None:
    said = json.dumps(explained.args, ensure_ascii=False)
    say(harmless(f"{explained.verdict}: {explained.tool} {said}"), bold=True, fg=COLOURS[explained.verdict])
    reason = f": {explained.reason}" if explained.reason else ""
    say(harmless(f"  by {explained.rule}{reason}" if explained.rule != BY_DEFAULT else "  by default: no rule matches"))
    first = True
    for one in explained.matched:
        if one["rule"] == explained.rule and first:
            first = False
            continue
        reason = f": {one['reason']}" if one["reason"] else ""
        say(harmless(f"  also {one['rule']}, which says {one['verdict']}{reason}"), dim=True)
    if explained.asked_without_deps:
        say(harmless(f"  asked without deps and outside of a run: {', '.join(explained.asked_without_deps)}"), dim=True)
    if explained.not_asked:
        say(harmless(f"  not asked, may change the call first: {', '.join(explained.not_asked)}"), dim=True)


__all__: list[Any] = ["command"]
