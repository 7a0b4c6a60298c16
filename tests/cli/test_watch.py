"""`clew watch`: a run as it happens in another process, from whatever moment on, and what leaving it does."""

import json
import signal
from typing import Any

import pytest

from clew import Runtime
from tests.cli.apps import app
from tests.cli.conftest import Shell, valid
from tests.cli.processes import CTRL_C, Running

pytestmark = pytest.mark.proves("E1")


def talking(shell: Shell) -> Running:
    """A driver in the middle of a sentence."""
    running = shell.start("run", "app:talker", "Go", "--run-id", "r")
    running.wait_for("It rains ")
    return running


def lines(text: str) -> list[Any]:
    """The lines of JSON that are there whole."""
    return valid("watch", [json.loads(line) for line in text.split("\n")[:-1]])


def words(things: list[Any]) -> str:
    return "".join(thing["text"] for thing in things if thing["kind"] == "text")


def test_the_words_come_as_they_stream_and_it_ends_with_the_run(shell: Shell) -> None:
    driver = talking(shell)
    watching = shell.start("watch", "r")
    assert watching.wait_for("It rains ").endswith("It rains ")
    shell.open_gate("words")
    assert driver.ended().code == 0
    said = watching.ended()
    assert (said.code, said.err) == (0, "")
    begin, text, reply, end = said.lines
    assert "▸ started: Go" in begin
    assert text == "It rains in Oslo."
    assert "■ turn 1: held" in reply
    assert "● natural" in end


def test_as_json_fragments_and_entries(shell: Shell) -> None:
    driver = talking(shell)
    watching = shell.start("watch", "r", "--json")
    watching.until(lambda: words(lines(watching.said())) == "It rains ", "it has heard what was said")
    shell.open_gate("words")
    driver.ended()
    things = lines(watching.ended().out)
    assert [thing["kind"] for thing in things if "seq" in thing] == shell.kinds("r")
    fragments = [thing for thing in things if thing["kind"] == "text"]
    assert "It rains in Oslo.".startswith(words(things))
    assert [x.get("offset", 0) for x in fragments] == [len(words(fragments[:n])) for n in range(len(fragments))]
    assert {(x["step"], x["epoch"], x.get("attempt", 1)) for x in fragments} == {("1.model", 1, 1)}


def test_on_a_terminal(shell: Shell) -> None:
    driver = talking(shell)
    watching = shell.start_on_terminal("watch", "r", columns=40)
    watching.wait_for("It rains ")
    shell.open_gate("words")
    driver.ended()
    said = watching.ended()
    assert said.code == 0
    assert said.plain.count("It rains in Oslo.") == 1
    assert "\x1b[32m" in said.out
    assert max(map(len, said.plain.split("\n"))) <= 40


def test_after_the_end_it_tells_what_the_journal_holds(shell: Shell) -> None:
    shell.drive(app.meteo, "r")
    said = shell.clew("watch", "r")
    assert said.code == 0
    assert said.lines.count("It is blue.") == 1
    assert "● natural" in said.lines[-1]
    things = shell.json("watch", "watch", "r", "--after", 3)
    assert [thing["seq"] for thing in things] == list(range(4, len(shell.kinds("r")) + 1))
    assert shell.json("watch", "watch", "r", "--after", 1_000) == []


def test_where_a_run_waits_it_goes_on_or_stops_as_one_likes(shell: Shell) -> None:
    shell.accept(app.clerk, "r")

    async def pause(runtime: Runtime) -> None:
        await runtime.pause("r")

    shell.aside(pause)
    shell.drive(app.clerk, "r")
    settled = shell.json("watch", "watch", "r", "--until", "settled")
    assert settled[-1]["kind"] == "paused"
    watching = shell.start("watch", "r", "--json")
    watching.wait_for('"paused"')
    shell.clew("cancel", "r")
    assert lines(watching.ended().out)[-1]["kind"] == "run_finished"


def test_a_run_that_goes_over_to_another_process_is_watched_on(shell: Shell) -> None:
    driver = shell.start("run", "app:clerk", "Go", "--run-id", "r")
    driver.until(lambda: shell.log("began"), "the tool works")
    watching = shell.start("watch", "r")
    watching.wait_for("1.tool.1 work")
    driver.kill()
    shell.open_gate("a")
    shell.open_gate("b")
    assert shell.clew("run", "app:clerk", "Go", "--run-id", "r").code == 0
    told = watching.ended().out
    assert "↻ taken up by" in told
    assert "All done.\n" in told


def test_all_runs_from_now_on(shell: Shell) -> None:
    shell.accept(app.clerk, "before")
    watching, as_json = shell.start("watch"), shell.start("watch", "--json")
    made: list[str] = []

    def one_more(heard: Running) -> bool:
        """Another run, unless one was seen: when it began to look, nobody can say."""
        if not heard.said():
            made.append(f"r{len(made)}")
            shell.accept(app.clerk, made[-1])
        return "\n" in heard.said()

    watching.until(lambda: one_more(watching), "it sees a run begin")
    as_json.until(lambda: one_more(as_json), "it sees a run begin")
    shell.clew("cancel", made[-1])
    assert f"{made[-1]}  ● cancelled" in watching.wait_for("● cancelled")
    as_json.wait_for('"run_finished"')
    for running in (watching, as_json):
        running.signal(signal.SIGINT)
        said = running.ended()
        assert (said.code, said.err) == (130, "\n")
        assert "before" not in said.out
        if running is as_json:
            things = valid("watch-all", said.json())
            assert things[-1]["run_id"] == made[-1]
            assert len({thing["cursor"] for thing in things}) == len(things)


@pytest.mark.proves("E2")
def test_leaving_it_leaves_the_run_alone(shell: Shell) -> None:
    driver = talking(shell)
    pressed, ended, typed = shell.start("watch", "r"), shell.start("watch", "r"), shell.start_on_terminal("watch", "r")
    for watching in (pressed, ended, typed):
        watching.wait_for("It rains ")
    pressed.signal(signal.SIGINT)
    ended.signal(signal.SIGTERM)
    typed.type(CTRL_C)
    codes = [watching.ended().code for watching in (pressed, ended, typed)]
    assert codes == [130, -signal.SIGTERM, 130]
    for watching in (pressed, ended, typed):
        assert "Traceback" not in watching.everything
    shell.open_gate("words")
    assert driver.ended().out == "It rains in Oslo.\n"
    assert shell.clew("runs").code == 0
    assert shell.files() <= {"clew.db", "log.txt", "go-words"}


def test_a_run_that_is_not_there(shell: Shell) -> None:
    shell.accept(app.clerk, "oslo-1")
    assert "did you mean oslo-1?" in shell.refused(1, "watch", "olso-1")
    shell.refused(2, "watch", "oslo-1", "--after", "-1")
