"""What `clew` says of itself: help with an example each, version, schemas, completion; and `python -m clew`."""

import re
import sys

import pytest
from jsonschema import Draft202012Validator

from clew.app.version import version
from clew.cli.main import COMMANDS
from clew.cli.schema import LINES
from tests.cli.apps import app
from tests.cli.conftest import Shell


@pytest.mark.parametrize("words", [("--help",), ("-h",), ()])
def test_help_lists_the_commands(read_only: Shell, words: tuple[str, ...]) -> None:
    said = read_only.clew(*words)
    assert said.code == (0 if words else 2)
    told = said.out + said.err
    listed = re.findall(r"^  (\w+)  +\S", told.partition("Commands:")[2], re.MULTILINE)
    assert listed == list(COMMANDS)
    assert "Begin with `clew demo`" in told


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_an_example(read_only: Shell, command: str) -> None:
    said = read_only.clew(command, "--help")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"Usage: clew {command} ")
    text = " ".join(said.out.split())
    assert re.search(rf"Example: (eval \"\$\()?clew {command}\b", text)
    for option in ("--store", "--json", "--debug"):
        assert option in text


def test_help_on_a_narrow_terminal(read_only: Shell) -> None:
    said = read_only.terminal("worker", "--help", columns=30)
    assert said.code == 0
    assert "SIGTERM" in said.plain


@pytest.mark.parametrize(
    ("typed", "told"),
    [("rnus", "did you mean `clew runs`?"), ("frobnicate", "`clew --help` lists them"), ("\x1b[31m", r"\x1b[31m")],
)
def test_a_command_that_is_not_there(read_only: Shell, typed: str, told: str) -> None:
    assert told in read_only.refused(2, typed).replace("\x1b", "\\x1b")


def test_the_script_and_the_module_are_one_program(read_only: Shell) -> None:
    expected = f"clew {version()}\n"
    assert read_only.clew("--version").out == expected
    assert read_only.sh("clew --version").out == expected
    assert read_only.sh("clew runs").err == read_only.clew("runs").err
    assert read_only.sh(f"{sys.executable} -m clew show --help").out == read_only.sh("clew show --help").out


# --- schemas ----------------------------------------------------------------------------------------------------------


def test_the_schema_of_each_line_is_one_and_all_of_them_are_in_the_whole(read_only: Shell) -> None:
    [whole] = read_only.clew("schema").json()
    Draft202012Validator.check_schema(whole)
    assert set(LINES) <= set(whole["$defs"])
    [one] = read_only.clew("schema", "runs").json()
    assert (one["$ref"], one["$defs"]) == ("#/$defs/runs", whole["$defs"])
    read_only.refused(2, "schema", "nix")


def test_a_schema_does_not_let_pass_what_is_otherwise(read_only: Shell) -> None:
    [whole] = read_only.clew("schema").json()
    for line, wrong in (
        ("watch", {"kind": "odd"}),
        ("watch", {"kind": "text", "step": 1}),
        ("worker", {"event": "left", "pid": 1, "agents": [], "runs": []}),
        ("run", {"run_id": "r"}),
    ):
        assert not Draft202012Validator({**whole, "anyOf": [{"$ref": f"#/$defs/{line}"}]}).is_valid(wrong)


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def completing(read_only: Shell) -> Shell:
    read_only.accept(app.meteo, "oslo-1", "oslo-2", "rome-1")
    return read_only


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        pytest.param("clew wa", ["watch"], id="a-command"),
        pytest.param("clew show os", ["oslo-2", "oslo-1"], id="runs"),
        pytest.param("clew watch rome", ["rome-1"], id="a-run"),
        pytest.param("clew cancel nix", [], id="no-run"),
        pytest.param("clew runs --st", ["--status", "--store"], id="options"),
        pytest.param("clew runs --status wa", ["waiting"], id="values"),
        pytest.param("clew --store sqlite:///other.db show os", [], id="another-store"),
        pytest.param("clew completion z", ["zsh"], id="shells"),
    ],
)
def test_bash_completes(completing: Shell, typed: str, expected: list[str]) -> None:
    words = typed.split()
    said = completing.clew(_CLEW_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1))
    assert (said.code, said.err) == (0, "")
    assert [line.partition(",")[2] for line in said.lines if line] == expected


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(completing: Shell, name: str) -> None:
    said = completing.clew("completion", name)
    assert (said.code, said.err) == (0, "")
    assert f"_CLEW_COMPLETE={name}_complete" in said.out
    completing.refused(2, "completion", "tcsh")


def test_the_script_works_in_bash(completing: Shell) -> None:
    typed = "COMP_WORDS=(clew show rome); COMP_CWORD=2"
    said = completing.sh(f'eval "$(clew completion bash)"; {typed}; _clew_completion clew; echo "$COMPREPLY"')
    assert (said.code, said.out) == (0, "rome-1\n")
