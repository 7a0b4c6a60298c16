"""The physical floor of a durable step: one row and one commit a record, and nothing else.

A record is written after each reply and after each tool result, so a step with k calls makes 1 + k commits. The rows go
to the end of one table with a growing rowid: the cheapest pattern of pages that SQLite has. `-1k` takes pages of 1 KiB.
"""

import json
import sqlite3
from pathlib import Path

from bench.workload import FINAL, SYSTEM, TOOL, Spec, decide, lookup

VARIANTS = ("sqlite3-full-append", "sqlite3-full-append-1k")

Message = dict[str, object]


class Peer:
    def __init__(self, variant: str, folder: Path) -> None:
        self._small_pages = variant.endswith("-1k")
        self._path = folder / "floor.db"

    async def setup(self) -> None:
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        if self._small_pages:
            self._connection.execute("PRAGMA page_size = 1024")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS journal (id INTEGER PRIMARY KEY, run TEXT, seq, body BLOB)"
        )

    async def run(self, run: str, spec: Spec) -> int:
        messages: list[Message] = []
        self._append(run, messages, {"role": "system", "content": SYSTEM})
        self._append(run, messages, {"role": "user", "content": spec.prompt()})
        return self._go_on(run, messages, None)

    async def resume(self, run: str) -> int:
        rows = self._connection.execute("SELECT body FROM journal WHERE run = ? ORDER BY seq", (run,))
        messages: list[Message] = [json.loads(body) for (body,) in rows]
        return self._go_on(run, messages, messages[-1].get("tool_call_id"))

    def _go_on(self, run: str, messages: list[Message], last: object) -> int:
        while (decided := decide(messages[1]["content"], last, len(messages))) is not None:
            text, calls = decided
            asked = [{"id": call, "name": TOOL, "arguments": args} for call, args in calls]
            self._append(run, messages, {"role": "assistant", "content": text, "tool_calls": asked})
            for call, args in calls:
                found = lookup(args["page"], args["limit"])
                self._append(run, messages, {"role": "tool", "tool_call_id": call, "content": found})
            last = calls[-1][0]
        self._append(run, messages, {"role": "assistant", "content": FINAL})
        return len(messages)

    def _append(self, run: str, messages: list[Message], message: Message) -> None:
        row = (run, len(messages), json.dumps(message).encode())
        self._connection.execute("INSERT INTO journal (run, seq, body) VALUES (?, ?, ?)", row)
        messages.append(message)

    async def close(self) -> None:
        self._connection.close()
