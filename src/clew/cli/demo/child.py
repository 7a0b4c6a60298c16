"""One process of the demo: drives one run of the bookkeeper, and may stop dead inside one payment.

`python -m clew.cli.demo.child FOLDER RUN LEASE [INVOICE]`
"""

import asyncio
import logging
import sys
from pathlib import Path

from clew.app import Runtime
from clew.cli.demo.shop import INVOICES, Ledger, bookkeeper

FOR_EVER = 3600.0
TASK = f"Pay the invoices {', '.join(INVOICES)}."


async def drive(folder: Path, run_id: str, lease: float, stop_in: str | None) -> str:
    def inside(invoice: str) -> None:
        """The payment is in the ledger, its result is not in the journal: the worst moment there is."""
        if invoice == stop_in:
            print(f"inside {invoice}", flush=True)  # noqa: T201
            sys.stdin.readline()

    ledger = Ledger(folder / "ledger.db")
    agent = bookkeeper(ledger, inside)
    async with Runtime(f"sqlite:///{folder / 'clew.db'}", agents=[agent], lease=lease, grace=1) as runtime:
        run = await runtime.start(agent, TASK, run_id=run_id)
        result = await run.result(timeout=FOR_EVER)
        return result.text


def main() -> None:
    folder, run_id, lease, *stop_in = sys.argv[1:]
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    text = asyncio.run(drive(Path(folder), run_id, float(lease), stop_in[0] if stop_in else None))
    print(f"done {text}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
