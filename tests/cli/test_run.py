"""`clew run`: what it shows, how it ends, and that a run typed again goes on and never begins anew."""

import json
import signal

import pytest

from clew import Runtime
from tests.cli.apps import app
from tests.cli.conftest import Shell, valid


def test_words_go_to_the_output_and_everything_else_beside_it(shell: Shell) -> None:
    said = shell.clew("run", "app:meteo", "Rain in Oslo?", "--run-id", "oslo-1")
    assert (said.code, said.out) == (0, "It is blue.\n")
    for part in ("started: Rain in Oslo?", '1.tool.1 look(town="Oslo")', "blue over Oslo", "natural (2 turns, 1 call"):
        assert part in said.err
    assert "It is blue." not in said.err


def test_typed_again_it_gives_the_stored_answer_and_asks_nobody(shell: Shell) -> None:
    first = shell.clew("run", "app:meteo", "Rain?", "--run-id", "oslo-1")
    again = shell.clew("run", "app:meteo", "Rain?", "--run-id", "oslo-1")
    assert (again.code, again.out) == (first.code, first.out)
    assert len(shell.log("asked")) == 2
    assert "was started otherwise" in shell.refused(1, "run", "app:meteo", "Snow?", "--run-id", "oslo-1")


def test_as_json_it_is_one_result(shell: Shell) -> None:
    [result] = shell.json("run", "run", "app:meteo", "Rain?", "--run-id", "oslo-1")
    assert (result["run_id"], result["status"], result["reason"]) == ("oslo-1", "done", "natural")
    assert (result["ok"], result["output"], result["turns"]) == (True, "It is blue.", 2)
    [result] = shell.json("run", "run", "app:typed", "Rain?")
    assert result["output"] == {"town": "Oslo", "sky": "blue"}


def test_a_run_that_fails_ends_with_1(shell: Shell) -> None:
    said = shell.clew("run", "app:speechless", "Go")
    assert (said.code, said.out) == (1, "")
    assert "the script has 0 replies" in said.err
    assert "Traceback" not in said.err
    [result] = shell.json("run", "run", "app:speechless", "Go", code=1)
    assert (result["ok"], result["reason"], result["output"]) == (False, "error", None)


def test_a_limit_that_is_reached_ends_with_1(shell: Shell) -> None:
    [result] = shell.json("run", "run", "app:meteo", "Go", "--turns", 1, code=1)
    assert result["reason"] == "stopped:turns"
    assert shell.clew("run", "app:meteo", "Go", "--turns", 0).code == 2


def test_a_run_that_waits_ends_with_3(shell: Shell) -> None:
    running = shell.start("run", "app:clerk", "Go", "--run-id", "r")
    running.until(lambda: shell.log("began"), "the tool works")

    async def pause(runtime: Runtime) -> None:
        await runtime.pause("r", by="me")

    shell.aside(pause)
    running.until(lambda: "paused" in shell.kinds("r"), "the pause is taken in")
    shell.open_gate("a")
    said = running.ended()
    assert said.code == 3
    assert "r waits: paused" in said.err
    [result] = shell.json("run", "run", "app:clerk", "Go", "--run-id", "r", code=3)
    assert (result["status"], result["reason"], result["ok"]) == ("waiting", "paused", False)
    [row] = shell.json("runs", "runs", "--status", "waiting")
    assert (row["run_id"], row["reason"]) == ("r", "paused")
    assert "waits: paused" in shell.clew("show", "r").out


@pytest.mark.parametrize("words", [("run", "app:meteo"), ("run", "app:meteo", "-")])
def test_the_input_may_come_from_the_standard_input(shell: Shell, words: tuple[str, ...]) -> None:
    assert shell.clew(*words, "--run-id", "r", text="Rain in Bergen?\nSnow?").out == "It is blue.\n"
    assert shell.entries("r")[0].input[0].text == "Rain in Bergen?\nSnow?"


def test_an_input_that_is_no_text_is_refused(shell: Shell) -> None:
    said = shell.sh("printf '\\xff\\xfe' | clew run app:meteo")
    assert (said.code, "surrogate" in said.err, "Traceback" in said.err) == (2, True, False)


def test_a_thread_goes_on(shell: Shell) -> None:
    shell.clew("run", "app:meteo", "Rain?", "--thread", "talk")
    [result] = shell.json("run", "run", "app:meteo", "And now?", "--thread", "talk")
    assert [x["parts"][0]["text"] for x in result["messages"] if x["role"] == "user"] == ["Rain?", "And now?"]
    assert len(shell.json("runs", "runs", "--thread", "talk")) == 2


def test_a_runtime_brings_its_store_and_its_agents(shell: Shell) -> None:
    said = shell.clew("run", "app:desk", "Rain?", "--agent", "meteo")
    assert (said.code, said.out) == (0, "It is blue.\n")
    assert "desk.db" in shell.files()
    assert "clew.db" not in shell.files()
    assert "say which with --agent" in shell.refused(2, "run", "app:desk", "Rain?")
    assert "'nix'" in shell.refused(2, "run", "app:desk", "Rain?", "--agent", "nix")
    assert "leave --store out" in shell.refused(
        2, "--store", "sqlite:///x.db", "run", "app:desk", "x", "--agent", "meteo"
    )


def test_on_a_terminal_it_is_one_conversation(shell: Shell) -> None:
    said = shell.terminal("run", "app:meteo", "Rain?")
    assert said.code == 0
    assert said.plain.index("started: Rain?") < said.plain.index("blue over Oslo") < said.plain.index("It is blue.\n")
    assert said.plain.count("It is blue.") == 1
    assert "\x1b[" in said.out


def test_on_a_terminal_a_missing_input_is_asked_for(shell: Shell) -> None:
    said = shell.terminal("run", "app:meteo")
    assert (said.code, "what should the agent do?" in said.plain) == (2, True)


def test_words_come_as_they_stream(shell: Shell) -> None:
    running = shell.start("run", "app:talker", "Go", "--run-id", "r")
    assert running.wait_for("It rains ") == "It rains "
    assert shell.info("r").status == "running"
    shell.open_gate("words")
    assert running.ended().out == "It rains in Oslo.\n"


@pytest.mark.proves("T3", "T4")
def test_killed_in_the_middle_and_typed_again_it_goes_on(shell: Shell) -> None:
    """What was answered is not asked again, what had a result does not run again."""
    command = ("run", "app:clerk", "Go", "--run-id", "r")
    shell.open_gate("a")
    running = shell.start(*command)
    running.until(lambda: len(shell.log("began")) == 2, "the second call works")
    assert running.kill().code == -signal.SIGKILL
    assert shell.info("r").status == "running"
    assert "nobody drives it" in shell.clew("show", "r").out
    shell.open_gate("b")
    again = shell.clew(*command)
    assert (again.code, again.out) == (0, "All done.\n")
    assert f"(process {shell.log('asked')[-1][1]} on " in again.err
    assert [ordinal for ordinal, _ in shell.log("asked")] == ["0", "1", "2"]
    assert [name for name, _ in shell.log("began")] == ["a", "b", "b"]
    assert [name for name, _ in shell.log("ended")] == ["a", "b"]


def test_a_run_that_another_process_drives_is_waited_for(shell: Shell) -> None:
    command = ("run", "app:clerk", "Go", "--run-id", "r")
    first = shell.start(*command)
    first.until(lambda: shell.log("began"), "the tool works")
    second, third = shell.start(*command), shell.start(*command, "--json")
    second.wait_for("1.tool.1 work", "err")
    shell.open_gate("a")
    shell.open_gate("b")
    ends = [running.ended() for running in (first, second, third)]
    assert [end.code for end in ends] == [0, 0, 0]
    assert [end.out for end in ends[:2]] == ["All done.\n"] * 2
    assert valid("run", ends[2].json())[0]["output"] == "All done."
    assert {pid for _, pid in shell.log("asked")} == {str(first.pid)}


def test_whoever_reads_no_more_lets_go(shell: Shell) -> None:
    """`clew run … | head`: no traceback, and the run can be taken up."""
    running = shell.start("run", "app:reporter", "Go", "--run-id", "r")
    running.wait_for("Fir")
    running.close("out")
    shell.open_gate("a")
    running.until(lambda: len(shell.log("began")) == 2 or running.gone_within(0), "it finds out, or works on b")
    shell.open_gate("b")
    said = running.ended()
    assert said.code == 130
    assert "Traceback" not in said.err
    assert "r is let go" in said.err
    again = shell.clew("run", "app:reporter", "Go", "--run-id", "r")
    assert (again.code, again.out) == (0, "First.\nThen.\nAll done.\n")
    assert [name for name, _ in shell.log("began")] == ["a", "b"]


def test_a_model_of_a_provider_is_a_target_of_its_own(shell: Shell) -> None:
    said = shell.clew("run", "openai:gpt-5-mini", "Hello", "--json")
    assert said.code == 1
    assert "Traceback" not in said.err
    told = said.error() if said.err else json.loads(said.out)["detail"]
    assert "openai" in told


def test_the_agents_of_the_store_that_others_drive_are_left_alone(shell: Shell) -> None:
    shell.accept(app.clerk, "theirs")
    assert shell.clew("run", "app:meteo", "Rain?").code == 0
    assert shell.kinds("theirs") == ["run_started"]
