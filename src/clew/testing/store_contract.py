"""What any Store must do, as tests: derive from StoreContract, say how a store is made, and run pytest."""

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from clew.ports import Clock, Store
from clew.testing.stores.acting import HandClock
from clew.testing.stores.commits import CommitContract
from clew.testing.stores.leases import LeaseContract
from clew.testing.stores.letters import LetterContract
from clew.testing.stores.reading import ReadingContract
from clew.testing.stores.threads import ThreadContract

__all__ = ["StoreContract"]


class StoreContract(CommitContract, ThreadContract, LetterContract, LeaseContract, ReadingContract):
    """Tests of every field of a batch and of every verb.

    A derived class gives a fixture `make_store`: a function of a clock that makes a store, empty and not yet open.
    """

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def make_store(self) -> Callable[[Clock], Store]:
        raise NotImplementedError(
            f"{type(self).__name__} needs a fixture make_store: a function from a clock to a store"
        )

    @pytest.fixture
    def clock(self) -> HandClock:
        return HandClock()

    @pytest_asyncio.fixture
    async def store(self, make_store: Callable[[Clock], Store], clock: HandClock) -> AsyncIterator[Store]:
        store = make_store(clock)
        await store.open()
        yield store
        await store.close()
