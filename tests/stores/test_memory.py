"""The memory store keeps the contract: it is the reference that the others are compared with."""

from collections.abc import Callable

import pytest

from clew.ports import Clock, Store
from clew.stores.memory import MemoryStore
from clew.testing.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def make_store(self) -> Callable[[Clock], Store]:
        return lambda clock: MemoryStore(clock=clock)
