"""The pytest plugin of the spec check: writes down what each test proves and which tests failed. Loaded with `-p`."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

# Where to write the report, and the statements that need a failing test before the run may stop.
REPORT = "CLEW_SPEC_REPORT"
STOP_AFTER = "CLEW_SPEC_STOP_AFTER"


class Written(msgspec.Struct):
    """One pytest run: the statements that each of its tests names, and the tests that failed."""

    proofs: dict[str, tuple[str, ...]] = {}
    failed: list[str] = []


class Item(Protocol):
    """What is read here of a collected test."""

    nodeid: str

    def iter_markers(self, name: str) -> Iterable[Any]: ...


class Scribe:
    """Ends the run early once every statement it was told of has a failing test."""

    def __init__(self, path: Path, stop_after: frozenset[str]) -> None:
        self.path = path
        self.awaited = set(stop_after)
        self.stops = bool(stop_after)
        self.written = Written()
        self.session: Any = None

    def pytest_collection_modifyitems(self, session: Any, items: list[Item]) -> None:
        self.session = session
        for item in items:
            if named := {name for marker in item.iter_markers("proves") for name in marker.args}:
                self.written.proofs[item.nodeid] = tuple(sorted(named))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and report.nodeid not in self.written.failed:
            self.written.failed.append(report.nodeid)
            self.awaited -= set(self.written.proofs.get(report.nodeid, ()))
            if self.stops and not self.awaited:
                self.session.shouldstop = "each statement has a test that failed"

    def pytest_sessionfinish(self) -> None:
        self.path.write_bytes(msgspec.json.encode(self.written))


def pytest_configure(config: Any) -> None:
    if path := os.environ.get(REPORT):
        config.pluginmanager.register(Scribe(Path(path), frozenset(os.environ.get(STOP_AFTER, "").split())))
