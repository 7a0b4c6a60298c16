"""Targets that are none: what is wrong, and what would be right, without a traceback of ours."""

from pathlib import Path

import pytest

from tests.cli.conftest import Shell

BROKEN = """\
from helpers import deep


def build():
    return deep({})


agent = build()
"""
INNER = """\
from clew import Agent
from clew.testing import ScriptedModel


class box:
    agent = Agent("inner", model=ScriptedModel(["Hi."]))
"""
HELPERS = """\
def deep(table):
    return table["missing"]
"""


@pytest.fixture(scope="module")
def targets(read_only: Shell) -> Shell:
    for name, text in {
        "broken.py": BROKEN,
        "helpers.py": HELPERS,
        "slip.py": "agent = Agent('x'\n",
        "missing.py": "import no_such_thing\n",
        "leaving.py": "import sys\nsys.exit('no configuration')\n",
        "empty.py": "",
        "refused.py": "from clew import Agent\n\nagent = Agent('x y z \\x1b[31m')\n",
        "sub/inner.py": INNER,
        "sub/json.py": "agent = 1\n",
        "sub/a.b.py": "agent = 1\n",
    }.items():
        path = read_only.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read_only


@pytest.mark.parametrize(
    ("target", "told"),
    [
        pytest.param("nix:agent", "there is no module 'nix' here: name it as module:agent", id="no-module"),
        pytest.param("nix.py:agent", "there is no file nix.py", id="no-file"),
        pytest.param("sub:agent", "sub has no 'agent'", id="a-folder"),
        pytest.param("app:nix", "app has no 'nix'; app has meteo (Agent)", id="no-such-name"),
        pytest.param(
            "app:number", "app:number is no Agent and no Runtime, but of type int; app has meteo", id="a-number"
        ),
        pytest.param("app:Weather", "but of type ModelMetaclass", id="a-class"),
        pytest.param("app", "'app' names no agent; app has meteo (Agent), talker (Agent)", id="no-name"),
        pytest.param("empty", "empty defines no Agent and no Runtime", id="an-empty-module"),
        pytest.param(":agent", "':agent' names no module", id="no-place"),
        pytest.param("", "'' names no module", id="nothing"),
        pytest.param("a b:c", "there is no module 'a b' here", id="no-identifier"),
        pytest.param(".:agent", "name it as module:agent", id="a-dot"),
        pytest.param("..app:agent", "name it as module:agent", id="dots"),
        pytest.param("sub/a.b.py:agent", "a module's name has no dot in it: rename the file", id="a-dot-in-a-name"),
        pytest.param("sub/json.py:agent", "another module is called 'json'", id="a-name-of-pythons-own"),
        pytest.param("app\x1b[31m:agent", r"\x1b[31m", id="escapes"),
        pytest.param("openai:", "openai", id="a-provider-without-a-model"),
    ],
)
def test_what_names_no_agent(targets: Shell, target: str, told: str) -> None:
    assert told in targets.told(2, "run", target, "Go")
    assert not targets.store.exists()


@pytest.mark.parametrize(
    ("target", "told"),
    [
        pytest.param("slip:agent", "SyntaxError", id="a-slip"),
        pytest.param("missing:agent", "ModuleNotFoundError: No module named 'no_such_thing'", id="an-import"),
        pytest.param("leaving:agent", "SystemExit: no configuration", id="it-leaves"),
        pytest.param("refused:agent", "UsageError", id="an-agent-that-cannot-be"),
    ],
)
def test_what_does_not_import_says_why(targets: Shell, target: str, told: str) -> None:
    message = targets.told(2, "run", target, "Go")
    module = target.partition(":")[0]
    assert message.startswith(f"{module} cannot be imported:\n")
    assert told in message
    assert f'{module}.py", line ' in message
    _only_the_users(message)


def test_the_users_own_traceback_and_nothing_else(targets: Shell) -> None:
    message = targets.refused(2, "run", "broken:agent", "Go")
    lines = message.splitlines()
    places = [line.strip() for line in lines if line.strip().startswith("File ")]
    assert [(Path(place.split('"')[1]).name, place.split(", ")[1]) for place in places] == [
        ("broken.py", "line 8"),
        ("broken.py", "line 5"),
        ("helpers.py", "line 2"),
    ]
    assert lines[-1] == "KeyError: 'missing'"
    _only_the_users(message)
    for command in ("worker", "torture"):
        words = ("broken:agent", *(["Go"] if command == "torture" else []))
        assert targets.refused(2, command, *words) == message


def _only_the_users(message: str) -> None:
    for ours in ("importlib", "clew/cli", "clew/agent", "user_code"):
        assert ours not in message


@pytest.mark.parametrize("target", ["sub/inner.py:box.agent", "./sub/inner.py:box.agent", "sub.inner:box.agent"])
def test_what_names_one(targets: Shell, target: str) -> None:
    said = targets.clew("--store", "sqlite:///fine.db", "run", target, "Go")
    assert (said.code, said.out) == (0, "Hi.\n")
