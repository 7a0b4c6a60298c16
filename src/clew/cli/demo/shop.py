"""What the demo runs: a bookkeeper with a scripted model, and a ledger that refuses to write a payment twice."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path

from clew.agent import Agent, ToolContext, tool
from clew.models.scripted import ScriptedModel, call, slow

INVOICES = {"A-17": Decimal("120.00"), "B-04": Decimal("75.50"), "C-31": Decimal("310.00")}
TALK = 1.2  # seconds that the last answer takes


class Ledger:
    """A table of payments whose key is the idempotency key: the outside world of this demo."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._open()) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS payments (key TEXT PRIMARY KEY, invoice TEXT, amount TEXT)")

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=5)

    def pay(self, key: str, invoice: str, amount: Decimal) -> bool:
        """Whether the payment was new; a second one under the same key is refused."""
        with closing(self._open()) as db, db:
            row = (key, invoice, str(amount))
            return db.execute("INSERT OR IGNORE INTO payments VALUES (?, ?, ?)", row).rowcount == 1

    def payments(self, run: str) -> list[tuple[str, str]]:
        """(invoice, amount) of a run's payments, as they came in."""
        with closing(self._open()) as db:
            found = db.execute(
                "SELECT invoice, amount FROM payments WHERE key LIKE ? ORDER BY rowid", (f"{run}:%",)
            ).fetchall()
        return [(str(invoice), str(amount)) for invoice, amount in found]


def bookkeeper(ledger: Ledger, inside: Callable[[str], None] = lambda _: None) -> Agent[object, str]:
    """The agent. `inside` hears of each payment that is in the ledger while its tool is still running."""

    @tool(effect="idempotent")
    async def pay(ctx: ToolContext[object], invoice: str, amount: Decimal) -> str:
        """Pay an invoice."""
        fresh = ledger.pay(ctx.idempotency_key, invoice, amount)
        inside(invoice)
        await asyncio.sleep(0)
        return f"paid {amount} for {invoice}" if fresh else f"{invoice} was paid already under this key"

    calls = [[call("pay", {"invoice": invoice, "amount": str(amount)})] for invoice, amount in INVOICES.items()]
    words = ["All ", "three ", "invoices ", "are ", "paid, ", "each ", "of ", "them ", "once."]
    return Agent("bookkeeper", model=ScriptedModel([*calls, slow(words, TALK)]), tools=[pay])
