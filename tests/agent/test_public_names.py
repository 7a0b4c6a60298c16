"""The names of `clew` and of the modules beside it."""

import importlib

import pytest

import clew

MOST_NAMES = 30


def test_the_names_are_sorted_few_and_there() -> None:
    assert clew.__all__ == sorted(clew.__all__)
    assert len(clew.__all__) <= MOST_NAMES
    for name in clew.__all__:
        assert getattr(clew, name) is not None
    assert set(clew.__all__) <= set(dir(clew))


def test_a_name_that_is_none() -> None:
    with pytest.raises(AttributeError, match="module 'clew' has no attribute 'Agnet'"):
        _ = clew.Agnet


@pytest.mark.parametrize(
    "module", ["agent", "entries", "errors", "messages", "models", "policy", "ports", "testing", "tools"]
)
def test_the_modules_beside_it_have_what_they_promise(module: str) -> None:
    found = importlib.import_module(f"clew.{module}")
    names = getattr(found, "__all__", [])
    for name in names:
        assert getattr(found, name) is not None
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = found.nothing_such


def test_entries_has_every_kind() -> None:
    from clew import entries
    from clew.core import entries as core

    kinds = {kind for kind in vars(core).values() if isinstance(kind, type) and issubclass(kind, core.Envelope)}
    assert {kind.__name__ for kind in kinds - {core.Envelope}} <= set(entries.__all__)
    assert {"Delta", "Entry", "TextDelta"} <= set(entries.__all__)
