"""Two agents that pay an invoice: one whose ledger knows the key of a payment, and one whose ledger does not."""

from pathlib import Path

from clew import Agent, ToolContext, tool
from clew.testing import ScriptedModel, call

LEDGER = Path("payments.txt")
SCRIPT = [[call("pay", {"invoice": "A-17"})], "Paid."]


def rows() -> list[str]:
    return LEDGER.read_text(encoding="utf-8").splitlines() if LEDGER.exists() else []


def reset() -> None:
    LEDGER.unlink(missing_ok=True)


def paid_once() -> None:
    assert rows() == ["A-17"], f"the ledger has {rows()}"


def enter(invoice: str) -> None:
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{invoice}\n")


@tool(name="pay", effect="idempotent")
def pay_well(ctx: ToolContext[object], invoice: str) -> str:
    """Pay an invoice, unless it is paid."""
    if invoice not in rows():
        enter(invoice)
    return f"paid {invoice}"


@tool(name="pay", effect="idempotent")
def pay_badly(ctx: ToolContext[object], invoice: str) -> str:
    """Pay an invoice, whether or not it is paid: declared idempotent, and is not."""
    enter(invoice)
    return f"paid {invoice}"


good = Agent("good", model=ScriptedModel(SCRIPT), tools=[pay_well])
bad = Agent("bad", model=ScriptedModel(SCRIPT), tools=[pay_badly])
namesake = good.replace(instructions="Be quick.")
