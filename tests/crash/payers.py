"""The agent that pays, the processes that drive it, and the clerk who decides where the bank says nothing.

`python -m tests.crash.payers driver|clerk FOLDER`. The first message is the plan: `pay:raise-before,plain+wire:late`
is a turn of two calls, of which the first raises in its first attempt and pays in any other.
"""

import asyncio
import logging
import os
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from clew import Agent, Approve, Message, ModelReply, ModelRequest, Reject, Respond, Runtime, ToolContext, tool
from clew.core.messages import Text, ToolCall, text_of
from clew.core.tickets import Decision, Ticket
from clew.errors import AlreadyDecided, ClewError, NotFound, RunEnded, StoreUnavailable, ToolError
from clew.ports import Fragment
from clew.stores.sqlite import SqliteStore
from clew.tools import Done, NotDone, Unknown
from tests.crash.bank import Teller
from tests.crash.planting import as_planted

NAME = "payer"
LEASE = 2.0
TIMEOUT = 0.5
RETRIES = 1
CONCURRENCY = 3  # runs that a driver holds
NAP = 0.05  # seconds around a payment in which its process may be hit
LATE = 1.0  # seconds after which a thread is done at last: its call has run out of time long since
LOOK_AGAIN = 0.05
NOT_PAID = "the book says that this was never paid"

ASYNC_MODES = ("plain", "raise-before", "raise-after", "slow-before", "slow-after", "refuse")
THREAD_MODES = ("plain", "raise-before", "raise-after", "refuse", "late", "paid-late", "late-raise-before",
                "late-raise-after", "late-refuse")  # fmt: skip
RAISED: tuple[type[BaseException], ...] = (RuntimeError, ConnectionResetError, SystemExit, asyncio.CancelledError)


def reply_to(messages: Sequence[Message]) -> tuple[Text | ToolCall, ...]:
    """What the model says, for whatever was said so far: the same in every process."""
    turn = sum(message.role == "assistant" for message in messages)
    plan = text_of(messages[0].parts).split(";")
    if turn >= len(plan):
        return (Text(f"Done after {turn} turns."),)
    calls: list[ToolCall] = []
    for place, wish in enumerate(plan[turn].split("+")):
        name, _, modes = wish.partition(":")
        call = f"c{turn}{place}"
        calls.append(ToolCall(call, call, name, f'{{"n": {turn * 10 + place}, "modes": "{modes}"}}'))
    return tuple(calls)


class PlanModel:
    name = "plan"

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        await asyncio.sleep(NAP)
        parts = reply_to(request.messages)
        calls = any(isinstance(part, ToolCall) for part in parts)
        yield ModelReply(parts=parts, finish="tool_calls" if calls else "stop")


def payer(teller: Teller) -> Agent:
    """Two tools that pay once, one on the event loop, one in threads; each asks the bank when in doubt."""

    def found(ctx: ToolContext) -> Done | NotDone | Unknown:
        match teller.ask(ctx.idempotency_key):
            case "none":
                return NotDone()
            case "silence" if ctx.args["n"] % 2:
                raise ConnectionError("the bank has nothing to say")
            case "silence":
                return Unknown()
            case receipt:
                return Done(receipt)

    async def asked(ctx: ToolContext) -> Done | NotDone | Unknown:
        return found(ctx)

    @tool(verify=asked, timeout=TIMEOUT, retries=RETRIES)
    async def pay(ctx: ToolContext, n: int, modes: str) -> str:
        """Pays, or breaks off around it."""
        mode = _mode(modes, ctx.attempt)
        await asyncio.sleep(TIMEOUT * 4 if mode == "slow-before" else NAP)
        _break_off(mode, "before", n)
        receipt = teller.pay(ctx.idempotency_key, ctx.attempt)
        await asyncio.sleep(TIMEOUT * 4 if mode == "slow-after" else NAP)
        _break_off(mode, "after", n)
        return receipt

    @tool(verify=found, timeout=TIMEOUT, retries=RETRIES)
    def wire(ctx: ToolContext, n: int, modes: str) -> str:
        """The same in a thread, which nobody can stop."""
        mode = _mode(modes, ctx.attempt)
        time.sleep(LATE if mode.startswith("late") else NAP)
        _break_off(mode, "before", n)
        receipt = teller.pay(ctx.idempotency_key, ctx.attempt)
        time.sleep(LATE if mode == "paid-late" else NAP)
        _break_off(mode, "after", n)
        return receipt

    return Agent(NAME, model=PlanModel(), tools=(pay, wire))


def _mode(modes: str, attempt: int) -> str:
    drawn = modes.split(",")
    return drawn[min(attempt, len(drawn)) - 1]


def _break_off(mode: str, when: str, n: int) -> None:
    if mode.endswith("refuse") and when == "before":
        raise ToolError("the bank is closed to you")
    if mode.endswith(f"raise-{when}"):
        raise RAISED[n % len(RAISED)](f"broken off {when} it was paid")


async def drive(folder: Path) -> None:
    agent = payer(Teller(folder / "bank.sock"))
    store = SqliteStore(folder / "clew.db")
    async with Runtime(store, agents=[agent], lease=LEASE, concurrency=CONCURRENCY, grace=LEASE):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


class Clerk:
    """Starts and cancels runs as it is told, and decides tickets by what the book says. Drives nothing."""

    def __init__(self, folder: Path) -> None:
        self._teller = Teller(folder / "bank.sock")
        self._agent = payer(self._teller)
        self.runtime = Runtime(SqliteStore(folder / "clew.db"), drive=False)
        self._told: asyncio.Queue[list[str] | None] = asyncio.Queue()

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        async with self.runtime:
            threading.Thread(target=self._hear, args=(loop,), daemon=True).start()
            print("ready", flush=True)
            deciding = loop.create_task(self._decide_all())
            while (told := await self._told.get()) is not None:
                await self._insist(told)
            deciding.cancel()

    def _hear(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(self._told.put_nowait, line.split())
        loop.call_soon_threadsafe(self._told.put_nowait, None)

    async def _insist(self, told: list[str]) -> None:
        """Until the store takes it: a process that is stopped in a commit keeps all others out meanwhile."""
        while True:
            try:
                return await self._obey(*told)
            except StoreUnavailable as error:
                logging.warning("the clerk tries again: %s", error)
                await asyncio.sleep(LOOK_AGAIN)

    async def _obey(self, word: str, run: str, plan: str = "") -> None:
        if word == "start":
            await self.runtime.start(self._agent, plan, run_id=run)
        elif word == "release":
            await self.runtime.store.quarantine(run, on=False)
        else:
            try:
                await self.runtime.cancel(run, by="clerk")
            except RunEnded:
                word = "too late for"
        print(word, run, flush=True)

    async def _decide_all(self) -> None:
        while True:
            try:
                for ticket in [ticket async for ticket in self.runtime.tickets()]:
                    await self._decide(ticket)
            except StoreUnavailable as error:
                logging.warning("the clerk looks again: %s", error)
            except ClewError:
                logging.exception("the clerk could not decide")
            await asyncio.sleep(LOOK_AGAIN)

    async def _decide(self, ticket: Ticket) -> None:
        if zlib.crc32(f"{ticket.ref} {time.monotonic():.1f}".encode()) % 3 == 0:
            return  # it is looked at a while longer, so that runs are cancelled over it too
        receipt = self._teller.look(f"{ticket.run_id}:{ticket.call}")
        decision: Decision = Respond(receipt)
        if receipt == "none":
            decision = Approve() if zlib.crc32(ticket.ref.encode()) % 2 else Reject(NOT_PAID)
        try:
            await self.runtime.decide(ticket, decision, by="clerk")
        except (AlreadyDecided, NotFound, RunEnded) as error:
            logging.info("no decision any more about %s: %s", ticket.ref, error)


def main() -> None:
    role, folder = sys.argv[1], Path(sys.argv[2])
    logging.basicConfig(level=logging.WARNING, format=f"{os.getpid()} %(relativeCreated)d %(name)s: %(message)s")
    with as_planted():
        asyncio.run(drive(folder) if role == "driver" else Clerk(folder).work())


if __name__ == "__main__":
    main()
