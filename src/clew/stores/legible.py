"""Entries for a reader of all runs, whom one run that cannot be read must not stop."""

import logging
from collections.abc import Iterable

from clew import codec
from clew.core.entries import Entry
from clew.errors import JournalCorrupt, Unsupported

log = logging.getLogger("clew.stores")


def legible(found: Iterable[tuple[str, bytes, str]]) -> list[tuple[str, Entry, str]]:
    """(run, entry, cursor) of what decodes; the rest is logged and left out."""
    entries: list[tuple[str, Entry, str]] = []
    for run, body, cursor in found:
        try:
            entries.append((run, codec.decode(body), cursor))
        except (JournalCorrupt, Unsupported) as error:
            log.warning("run %s: an entry cannot be read and is left out: %s", run, error)
    return entries
