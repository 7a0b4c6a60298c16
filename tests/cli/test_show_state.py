"""`clew show`: the state keys of a run and of its thread."""

import pytest

from tests.cli.conftest import Shell


@pytest.mark.proves("T9")
def test_state_is_shown_by_scope_and_key_short_and_harmless(shell: Shell) -> None:
    shell.clew("run", "guarded:shopper", "Go", "--run-id", "r")
    said = shell.clew("show", "r")
    lines = [line for line in said.out.splitlines() if line.startswith("state of")]
    assert lines[0].startswith('state of the run: seen = "xxx')
    assert lines[0].endswith("…")
    assert lines[1] == 'state of the thread: cart = ["tea", "\\u001b[31mmilk"]'
    assert "\x1b" not in said.out
    [told] = shell.json("show", "show", "r")
    [returned] = [entry for entry in told["entries"] if entry["kind"] == "tool_returned"]
    assert {op["key"]: op.get("scope", "run") for op in returned["state"]} == {"cart": "thread", "seen": "run"}
