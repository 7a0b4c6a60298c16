"""The pytest plugin: the `clew_runtime` fixture, `--clew-crash`, and planted faults by `CLEW_FAULT`."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from clew.ports import Store


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("clew")
    group.addoption(
        "--clew-crash",
        action="store_true",
        help="crash the driver of every run of clew_runtime after each of its commits: tests must pass all the same",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "proves(*statements): the statements of the semantics that this test proves")


@pytest.fixture(autouse=True, scope="session")
def _clew_fault() -> Iterator[None]:
    """Plants the fault that CLEW_FAULT names, for the whole session. An unknown name is an error."""
    name = os.environ.get("CLEW_FAULT")
    if name is None:
        yield
        return
    from clew.testing.faults import planted

    with planted(name):
        yield


@pytest.fixture
async def clew_runtime(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """`rt = await clew_runtime(agents=[…], model=…)`: an open Runtime in memory, closed after the test."""
    from clew.app import Runtime
    from clew.stores.memory import MemoryStore
    from clew.testing.restless import Restless

    async with AsyncExitStack() as stack:

        async def make(store: Any = None, **given: Any) -> Runtime:
            inner = MemoryStore(clock=given.get("clock")) if store is None else store
            if request.config.getoption("--clew-crash"):
                inner = cast("Store", Restless(inner))
            return await stack.enter_async_context(Runtime(inner, **given))

        yield make
