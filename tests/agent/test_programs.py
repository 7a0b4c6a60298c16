"""The user programs of tests/typing are not only well typed: what they define can be defined."""

import importlib
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[1] / "typing" / "programs"
LATER = {
    "p16_sync",  # decides at the prompt while it is imported
    "p18_target",  # gives a Runtime an agent that runs elsewhere
}


@pytest.fixture(autouse=True)
def neighbours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(PROGRAMS))


@pytest.mark.parametrize("program", sorted(path.stem for path in PROGRAMS.glob("p*.py") if path.stem not in LATER))
def test_a_program_defines_what_it_says(program: str) -> None:
    assert importlib.import_module(program)


def test_the_program_with_tests_of_its_own() -> None:
    # Its model fails once, and is asked again after the second that it wished for.
    importlib.import_module("p15_testing").test_unit()
