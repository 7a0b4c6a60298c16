"""Agents for the tests of the command line. The folder of a test gets a copy of this module, beside its store.

What happens is written into `log.txt`; what is to be held waits until a file `go-NAME` is there.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

from pydantic import BaseModel

from clew import Agent, ModelReply, ModelRequest, Runtime, ToolContext, ToolError, tool
from clew.messages import Text
from clew.ports import Fragment
from clew.testing import ScriptedModel, call, slow

ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b1m \x7f \u202etxet\u2066 \u200b\u2028 [red]bold[/red] [link=x]"


def note(*words: object) -> None:
    with Path("log.txt").open("a", encoding="utf-8") as log:
        log.write(" ".join(map(str, words)) + "\n")


async def gate(name: str) -> None:
    while not Path(f"go-{name}").exists():  # noqa: ASYNC110, ASYNC240 -- whoever opens it is another process
        await asyncio.sleep(0.005)


class Noted(ScriptedModel):
    """A script that writes down how often it is asked."""

    def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        note("asked", request.ordinal, os.getpid())
        return super().stream(request)


class Held:
    """A model that says half of its one reply, and the rest when it is let."""

    name = "held"

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        note("asked", request.ordinal, os.getpid())
        for piece in ("It ", "rains "):
            yield Fragment("text", piece)
        await gate("words")
        for piece in ("in ", "Oslo."):
            yield Fragment("text", piece)
        yield ModelReply(parts=(Text("It rains in Oslo."),))


SECTIONS = (("Once ", "upon "), ("a long time " * 200,) * 100, ("there was ", "a ball of thread."))
SPEECH = "".join(map("".join, SECTIONS))


class Lecture:
    """A model with one long reply, each section of which is said when it is let."""

    name = "lecture"

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        for number, section in enumerate(SECTIONS):
            await gate(f"section-{number}")
            for piece in section:
                yield Fragment("text", piece)
        yield ModelReply(parts=(Text(SPEECH),))


@tool(effect="read")
def look(town: str = "Oslo") -> str:
    """What the sky is like."""
    return f"blue over {town}"


@tool(effect="read")
def curse() -> str:
    """Answers what no terminal should be shown."""
    return ESCAPES


@tool(effect="read")
def stumble() -> str:
    """Fails, and says why in a way that no terminal should be shown."""
    raise ToolError(f"stumbled over {ESCAPES}")


@tool(effect="idempotent")
async def work(ctx: ToolContext[object], name: str) -> str:
    """Work until somebody says that it is enough."""
    note("began", name, os.getpid())
    await gate(name)
    note("ended", name, os.getpid())
    return f"worked on {name}"


@tool
async def strike(ctx: ToolContext[object]) -> str:
    """Strike once: whether it did, nobody can say who was not there at the end."""
    note("began", "strike", os.getpid())
    await gate("strike")
    return "struck"


@tool(effect="idempotent", retries=1)
def ring(ctx: ToolContext[object], bell: str) -> str:
    """Ring a bell. Nobody answers at first."""
    if ctx.attempt == 1:
        raise ConnectionError("nobody answers")
    return f"rang {bell}"


def priced(text: str, cost: str) -> ModelReply:
    return ModelReply(parts=(Text(text),), cost=Decimal(cost))


class Weather(BaseModel):
    town: str
    sky: str


meteo = Agent("meteo", model=Noted([[call("look", {"town": "Oslo"})], "It is blue."]), tools=[look])
talker = Agent("talker", model=Held())
slowly = Agent("slowly", model=ScriptedModel([slow("One word after the other.", 5)]))
clerk = Agent(
    "clerk", model=Noted([[call("work", {"name": "a"})], [call("work", {"name": "b"})], "All done."]), tools=[work]
)
reporter = Agent(
    "reporter",
    model=Noted([["First.", call("work", {"name": "a"})], ["Then.", call("work", {"name": "b"})], "All done."]),
    tools=[work],
)
rogue = Agent(
    "rogue",
    model=ScriptedModel([[f"Words: {ESCAPES}\n", call("curse")], [call("stumble")], f"Last: {ESCAPES}"]),
    tools=[curse, stumble],
)
lecturer = Agent("lecturer", model=Lecture())
smith = Agent("smith", model=Noted([[call("strike")], "Done."]), tools=[strike])
ringer = Agent(
    "ringer", model=ScriptedModel([[call("ring", {"bell": "front"})], priced("It rang.", "0.0125")]), tools=[ring]
)
speechless = Agent("speechless", model=ScriptedModel([]))
typed = Agent("typed", model=ScriptedModel(['{"town": "Oslo", "sky": "blue"}']), output_type=Weather)

desk = Runtime("sqlite:///desk.db", agents=[meteo, clerk], grace=30)
reader = Runtime("sqlite:///desk.db", agents=[meteo], drive=False)
nobody = Runtime("sqlite:///desk.db", agents=[])
number = 3
