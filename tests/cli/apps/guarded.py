"""An agent with rules, for `clew check`."""

from typing import Any

from clew import Agent, Middleware, RunContext, Runtime, StateKey, ToolCall, ToolOutput, tool
from clew.policy import Verdict, allow, answer, ask, block, deny, gt
from clew.testing import ScriptedModel, call


@tool(effect="once")
def pay(amount: int, to: str = "ada") -> str:
    raise AssertionError("nothing runs")


@tool(effect="once", needs_approval=lambda ctx, args: args["count"] > 3)
def ship(count: int = 5) -> str:
    raise AssertionError("nothing runs")


@tool(effect="once", needs_approval=True)
def wipe() -> str:
    raise AssertionError("nothing runs")


@tool(effect="read")
def look() -> str:
    raise AssertionError("nothing runs")


def needs_the_bank(ctx: RunContext[Any], call: ToolCall) -> Verdict | None:
    if call.tool == "look":
        ctx.deps.balance()
    return None


async def night(ctx: RunContext[Any], call: ToolCall) -> Verdict | None:
    return deny("pay", "not at night") if call.args.get("to") == "\x1b[31mowl" else None


class Cautious(Middleware):
    async def before_tool(self, ctx: RunContext[Any], call: ToolCall) -> None:
        raise AssertionError("nobody asks")


RULES = [
    allow("*"),
    ask("pay", amount=gt(100)),
    deny("pay", "too much", amount=gt(1000)),
    block("pay", "alarm", amount=gt(10_000)),
    answer("ship", "shipped", count=0),
]
agent = Agent(
    "guard",
    model=ScriptedModel([]),
    tools=[pay, ship, wipe, look],
    policy=[*RULES, needs_the_bank, night],
    middleware=[Cautious()],
)
CART = StateKey("cart", list[str], default=[], scope="thread")
SEEN = StateKey("seen", str)


@tool(effect="read")
def shop() -> ToolOutput:
    return ToolOutput("bought", state={CART: ["tea", "\x1b[31mmilk"], SEEN: "x" * 500})


shopper = Agent("shopper", model=ScriptedModel([call("shop"), "Done."]), tools=[shop])
plain = Agent("plain", model=ScriptedModel([]), tools=[pay, wipe])
desk = Runtime("sqlite:///desk.db", agents=[agent, plain])
