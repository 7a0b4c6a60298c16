"""Each import contract, and each number to hold, is seen to fail once: a check that cannot fail holds nothing."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import numbers

ROOT = Path(__file__).parents[2]
LINTER = "from importlinter.cli import lint_imports_command as run; run()"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the library and of the contracts, to plant violations in."""
    shutil.copytree(ROOT / "src" / "clew", tmp_path / "src" / "clew", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(tree: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    options = [option for contract in contracts for option in ("--contract", contract)]
    return subprocess.run(
        [sys.executable, "-c", LINTER, "--config", str(tree / "pyproject.toml"), "--no-cache", "--no-logo", *options],
        cwd=tree / "src",
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def plant(tree: Path, module: str, line: str) -> None:
    """A new module with one line, or one line more at the end of a module that exists."""
    path = tree / "src" / "clew" / module
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")


def test_the_tree_keeps_every_contract(tree: Path) -> None:
    linted = lint_imports(tree)
    assert linted.returncode == 0, linted.stdout + linted.stderr


BREAKS = [
    pytest.param("layers", "core/planted.py", "import clew.runtime", "clew.core", id="core-up"),
    pytest.param("layers", "errors.py", "import clew.core", "clew.errors", id="errors-up"),
    pytest.param("layers", "stores/planted.py", "import clew.compose", "clew.stores", id="store-up"),
    pytest.param("layers", "runtime/planted.py", "import clew.app", "clew.runtime", id="runtime-up"),
    pytest.param("layers", "agent/planted.py", "import clew.compose", "clew.agent", id="agent-only-to-app"),
    pytest.param("layers", "models/planted.py", "import clew.stores", "clew.models", id="siblings"),
    pytest.param("layers", "entries.py", "import clew.codec", "clew.entries", id="sibling-modules"),
    pytest.param("layers", "app/planted.py", "import clew.testing", "clew.app", id="product-imports-testing"),
    pytest.param("layers", "utils.py", "", "clew.utils", id="module-without-layer"),
    pytest.param("cycles", "core/state.py", "import clew.core.rules", "clew.core", id="cycle"),
    pytest.param("pure", "core/planted.py", "import time", "clew.core.planted -> time", id="clock"),
    pytest.param("pure", "core/planted.py", "def f():\n    import random", "random", id="inside-a-function"),
    pytest.param("pure", "core/planted.py", "import pydantic", "pydantic", id="third-party-in-core"),
    pytest.param("pure", "codec.py", "from datetime import datetime", "clew.codec -> datetime", id="codec"),
    pytest.param("clients", "runtime/planted.py", "import sqlite3", "sqlite3", id="client-in-runtime"),
    pytest.param("clients", "models/planted.py", "import openai", "openai", id="client-in-a-neighbour"),
    pytest.param("clients", "app/planted.py", "import rich", "rich", id="terminal-in-the-façade"),
]


def test_each_contract_is_broken_once() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    assert {case.values[0] for case in BREAKS} == {contract["id"] for contract in contracts}


@pytest.mark.parametrize(("contract", "module", "line", "named"), BREAKS)
def test_a_contract_is_broken_by(tree: Path, contract: str, module: str, line: str, named: str) -> None:
    if contract == "cycles":
        plant(tree, "core/rules.py", "import clew.core.state")
    plant(tree, module, line)
    linted = lint_imports(tree, contract)
    assert linted.returncode == 1
    assert "BROKEN" in linted.stdout, linted.stdout + linted.stderr
    assert named in linted.stdout


def test_what_the_core_imports_is_pure_too(tree: Path) -> None:
    plant(tree, "errors.py", "import socket")
    plant(tree, "core/planted.py", "import clew.errors")
    linted = lint_imports(tree, "pure")
    assert linted.returncode == 1
    assert "clew.errors -> socket" in linted.stdout


Finder = Callable[[numbers.Tree], Iterator[str]]


def row(name: str) -> Finder:
    (find,) = [number.find for number in numbers.NUMBERS if name in number.name]
    return find


def found(tree: Path, find: Finder) -> list[str]:
    return list(find(numbers.Tree(tree)))


LONG_MATCH = "def f(x):\n    match x:\n" + "".join(f"        case {n}:\n            return {n}\n" for n in range(40))


COUNTED = [
    pytest.param("files over", "core/planted.py", "x = 1\n" * 501, id="long-file"),
    pytest.param("functions over", "core/planted.py", "def f():\n" + "    x = 1\n" * 60, id="long-function"),
    pytest.param("functions over", "app/planted.py", "async def f():\n" + "    x = 1\n" * 60, id="long-in-the-façade"),
    pytest.param("functions over", "runtime/planted.py", LONG_MATCH, id="match-outside-core"),
    pytest.param("parameters over", "core/planted.py", "def f(a, b, c, d, *, e, f, g): ...", id="parameters"),
    pytest.param("silent excepts", "stores/planted.py", "try:\n    f()\nexcept KeyError:\n    pass", id="pass"),
    pytest.param("silent excepts", "app/planted.py", "with suppress(Exception):\n    f()", id="suppress"),
    pytest.param("broad excepts", "stores/planted.py", "try:\n    f()\nexcept Exception:\n    g()", id="broad"),
    pytest.param(
        "broad excepts", "app/planted.py", "try:\n    f()\nexcept (OSError, BaseException):\n    g()", id="one-of"
    ),
    pytest.param("broad excepts", "app/planted.py", "try:\n    f()\nexcept:\n    g()", id="bare"),
    pytest.param("third-party", "core/planted.py", "from pydantic.fields import Field", id="third-party-in-core"),
    pytest.param("public names", "__init__.py", "__all__ = ['planted']", id="public-name"),
    pytest.param("call a model", "app/planted.py", "self.model.stream(request)", id="second-model-call"),
    pytest.param("append", "runtime/planted.py", "await store.commit(batch)", id="second-append"),
    pytest.param("create", "runtime/planted.py", "await self._store.start(request)", id="second-creation"),
]


def test_each_number_is_seen_to_count() -> None:
    counted = {row(str(case.values[0])) for case in COUNTED} | {numbers.import_cycles}
    assert counted == {number.find for number in numbers.NUMBERS}


@pytest.mark.parametrize(("name", "module", "text"), COUNTED)
def test_a_number_counts(tree: Path, name: str, module: str, text: str) -> None:
    before = found(tree, row(name))
    plant(tree, module, text)
    after = found(tree, row(name))
    assert len(after) > len(before)


def test_a_number_counts_import_cycles(tree: Path) -> None:
    assert found(tree, numbers.import_cycles) == []
    plant(tree, "core/rules.py", "import clew.core.state")
    plant(tree, "core/state.py", "import clew.core.rules")
    assert len(found(tree, numbers.import_cycles)) == 1


@pytest.mark.parametrize(
    ("name", "module", "text"),
    [
        pytest.param("functions over", "core/planted.py", LONG_MATCH, id="flat-match-in-core"),
        pytest.param(
            "parameters over", "app/planted.py", "def f(a, b, c, d, *, e, f, g): ...", id="keywords-of-the-façade"
        ),
        pytest.param("parameters over", "core/planted.py", "def f(self, a, b, c, d, e, f): ...", id="self"),
        pytest.param(
            "broad excepts",
            "app/planted.py",
            "try:\n    f()\nexcept BaseException:\n    g()\n    raise",
            id="raised-on",
        ),
        pytest.param("append", "stores/planted.py", "store.commit(batch)", id="a-store-itself"),
        pytest.param("append", "app/planted.py", "connection.commit()", id="another-commit"),
    ],
)
def test_a_number_lets_pass(tree: Path, name: str, module: str, text: str) -> None:
    before = found(tree, row(name))
    plant(tree, module, text)
    assert found(tree, row(name)) == before


def test_a_crossed_number_turns_the_check_red(tree: Path) -> None:
    plant(tree, "core/planted.py", "x = 1\n" * 501)
    command = [sys.executable, "-m", "tools.numbers", str(tree)]
    counted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert counted.returncode == 1
    assert any(line.startswith("RED") and "files over 500" in line for line in counted.stdout.splitlines())
