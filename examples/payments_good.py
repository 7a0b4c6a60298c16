"""An agent that pays invoices, written so that a crash at any instant leaves each of them paid once.

clew torture examples/payments_good.py:agent "Pay the invoices" --reset reset --check check
"""

import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

from clew import Agent, ToolContext, tool
from clew.testing import ScriptedModel, call

INVOICES = {"A-17": "120.00", "B-04": "75.50", "C-31": "310.00"}
LEDGER = Path(tempfile.gettempdir()) / "clew-payments-good.db"


def ledger() -> sqlite3.Connection:
    """The outside world: it refuses a second row under one key."""
    db = sqlite3.connect(LEDGER, isolation_level=None)
    db.execute("CREATE TABLE IF NOT EXISTS payments (receipt INTEGER PRIMARY KEY, key TEXT UNIQUE, invoice, amount)")
    return db


@tool(effect="idempotent")
def pay(ctx: ToolContext, invoice: str, amount: str) -> str:
    """Pay an invoice."""
    key = ctx.idempotency_key  # the same for every attempt of this call, in every process
    with closing(ledger()) as db:
        db.execute("INSERT OR IGNORE INTO payments (key, invoice, amount) VALUES (?, ?, ?)", (key, invoice, amount))
        [receipt] = db.execute("SELECT receipt FROM payments WHERE key = ?", (key,)).fetchone()
    return f"paid {amount} for {invoice}, receipt {receipt}"


calls = [call("pay", {"invoice": invoice, "amount": amount}) for invoice, amount in INVOICES.items()]
agent = Agent("bookkeeper", model=ScriptedModel([*calls, "All invoices are paid."]), tools=[pay])


def reset() -> None:
    """An empty ledger, before each trial."""
    LEDGER.unlink(missing_ok=True)


def check() -> list[str]:
    """What is wrong with the ledger after a trial: each invoice is there once, or it is named."""
    with closing(ledger()) as db:
        rows = Counter(invoice for (invoice,) in db.execute("SELECT invoice FROM payments"))
    return [f"{invoice} was paid {rows[invoice]} times" for invoice in INVOICES if rows[invoice] != 1]
