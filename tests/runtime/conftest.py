"""Fixtures of the runtime's tests: each runs over every store, and none may hang."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.world import PATIENCE, World

HERE = Path(__file__).parent
STORES = ["memory", "sqlite"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that waits longer than this hangs, and fails."""
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _patient(item.obj)


def _patient(test: Any) -> Any:
    @functools.wraps(test)
    async def bounded(*args: Any, **given: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            await test(*args, **given)

    return bounded


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def world(kind: str, tmp_path: Path) -> AsyncIterator[World]:
    made = World(kind, tmp_path)
    yield made
    await made.close()
