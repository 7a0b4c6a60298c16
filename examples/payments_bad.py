"""The agent of payments_good.py, written badly: its tool says that it may run again, and then pays again.

clew torture examples/payments_bad.py:agent "Pay the invoices" --reset reset --check check
"""

import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

from clew import Agent, tool
from clew.testing import ScriptedModel, call

INVOICES = {"A-17": "120.00", "B-04": "75.50", "C-31": "310.00"}
LEDGER = Path(tempfile.gettempdir()) / "clew-payments-bad.db"


def ledger() -> sqlite3.Connection:
    """The outside world: it writes down whatever it is told."""
    db = sqlite3.connect(LEDGER, isolation_level=None)
    db.execute("CREATE TABLE IF NOT EXISTS payments (receipt INTEGER PRIMARY KEY, invoice, amount)")
    return db


@tool(effect="idempotent")  # a promise that the body does not keep: the idempotency key goes nowhere
def pay(invoice: str, amount: str) -> str:
    """Pay an invoice."""
    with closing(ledger()) as db:
        db.execute("INSERT INTO payments (invoice, amount) VALUES (?, ?)", (invoice, amount))
    return f"paid {amount} for {invoice}"


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
