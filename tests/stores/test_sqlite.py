"""The SQLite store keeps the contract."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clew.ports import Clock, Store
from clew.stores.sqlite import SqliteStore
from clew.testing.store_contract import StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Callable[[Clock], Store]:
        return lambda clock: SqliteStore(tmp_path / "clew.db", clock=clock)
