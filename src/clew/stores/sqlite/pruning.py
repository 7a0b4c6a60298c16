"""Removing finished runs."""

from collections.abc import Collection

from clew.stores import admission, queries
from clew.stores.sqlite import reading
from clew.stores.sqlite.desk import Desk

_JOURNAL = queries.load("journal")
_RUNS = queries.load("runs")
_THREADS = queries.load("threads")
_PRUNING = queries.load("pruning")


def prune(desk: Desk, runs: Collection[str]) -> tuple[int, list[str]]:
    """How many entries went."""
    found = {run: desk.find(run) for run in runs}
    if missing := [run for run, row in found.items() if row is None]:
        raise admission.unknown(missing[0])
    keys = {row[0]: row[1] for row in found.values() if row is not None and row[1] is not None}
    for run, key in keys.items():
        if not desk.lease(key).done:
            raise admission.not_prunable(run, None)
    for run in keys:
        for (heir,) in desk.run(_RUNS["on_base"], run):
            if heir not in keys:
                raise admission.not_prunable(run, heir)
    [newest] = desk.one(_JOURNAL["newest"])
    removed = sum(_remove(desk, run, key) for run, key in sorted(keys.items()))
    if removed:
        desk.run(_JOURNAL["mark"], newest)
        desk.run(_JOURNAL["sweep_marks"])
    return removed, []


def _remove(desk: Desk, run: str, key: int) -> int:
    row = reading.row(desk.connection, run)
    start_digest = (desk.find(run) or ("", None, ""))[2]
    entries = desk.last_seq(key)
    for query in _PRUNING.values():
        desk.run(query, key)
    desk.run(_THREADS["behead"], key)
    desk.run(_RUNS["delete"], key)
    desk.run(_RUNS["bury"], run, start_digest, str(row.outcome), row.finished_at)
    desk.forget()
    return entries
