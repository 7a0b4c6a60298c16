"""`clew show`: a run as a timeline, how it stands now, and what is said of a run that is not there."""

import re
import signal

import pytest

from clew import Runtime
from tests.cli.apps import app
from tests.cli.conftest import Shell


@pytest.fixture(scope="module")
def shown(read_only: Shell) -> Shell:
    read_only.drive(app.meteo, "oslo-1", "oslo-2", text="Rain in Oslo?")
    read_only.drive(app.ringer, "bell-1", text="Ring!")
    read_only.drive(app.speechless, "mute")
    read_only.accept(app.clerk, "active", "queued", thread="busy")
    return read_only


def test_turns_calls_attempts_durations_and_cost(shown: Shell) -> None:
    said = shown.clew("show", "bell-1")
    assert (said.code, said.err) == (0, "")
    assert "\x1b" not in said.out
    head, facts, *timeline = said.lines
    assert head == "bell-1  agent ringer  done (natural)"
    for fact in ("2 turns", "1 call", "$0.0125"):
        assert fact in facts
    told = "\n".join(timeline)
    assert told.count("ConnectionError") == 1
    for part in (
        "▸ started: Ring!",
        "■ turn 1: scripted",
        '→ 1.tool.1 ring(bell="front")',
        "✗ 1.tool.1 ring",
        ": ConnectionError: nobody answers, tried again in",
        "✓ 1.tool.1 ring attempt 2",
        "→ rang front",
        "» It rang.",
        "● natural (2 turns, 1 call",
    ):
        assert part in told
    assert re.search(r"\+\d+(\.\d+)? m?s ", timeline[0])


def test_a_run_that_failed_says_why(shown: Shell) -> None:
    said = shown.clew("show", "mute")
    assert said.lines[0].endswith("done (error)")
    assert "the script has 0 replies" in said.lines[-1]


def test_as_json_it_is_the_row_and_the_journal(shown: Shell) -> None:
    for run in ("bell-1", "mute", "queued"):
        [thing] = shown.json("show", "show", run)
        assert thing["run"]["run_id"] == run
        assert [entry["kind"] for entry in thing["entries"]] == shown.kinds(run)


def test_the_beginning_of_an_id_will_do_while_only_one_run_has_it(shown: Shell) -> None:
    assert shown.clew("show", "bell").lines[0].startswith("bell-1 ")
    assert shown.refused(1, "show", "oslo").endswith("did you mean oslo-2, oslo-1?")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        pytest.param("olso-1", "did you mean oslo-1, oslo-2?", id="a-slip"),
        pytest.param("BELL-1", "`clew runs` lists them", id="nothing-near"),
        pytest.param("", "there is no run ''", id="empty"),
        pytest.param("x" * 5_000, "`clew runs` lists them", id="long"),
        pytest.param("oslo-1\x1b[31m\n[red]", r"\x1b[31m\n[red]", id="escapes"),
        pytest.param("%", "`clew runs` lists them", id="wildcard"),
    ],
)
def test_a_run_that_is_not_there(shown: Shell, typed: str, told: str) -> None:
    assert told in shown.refused(1, "show", typed).replace("\x1b", r"\x1b").replace("\n", r"\n")


def test_how_it_stands_while_nobody_drives_it(shown: Shell) -> None:
    assert shown.clew("show", "active").lines[-1].startswith("now: nobody drives it")
    assert shown.clew("show", "queued").lines[-1] == "now: queued in thread busy"


def test_times_are_in_the_zone_of_the_reader(shown: Shell) -> None:
    def hour(zone: str) -> int:
        found = re.search(
            r"started \d{4}-\d\d-\d\d (\d\d):\d\d:\d\d, \d+ (s|min) ago", shown.clew("show", "mute", TZ=zone).out
        )
        assert found is not None
        return int(found[1])

    assert (hour("JST-9") - hour("UTC")) % 24 == 9


def test_on_a_terminal_it_has_colours_and_ends_where_the_terminal_does(shown: Shell) -> None:
    said = shown.terminal("show", "bell-1", columns=60)
    assert "\x1b[32m" in said.out
    assert max(map(len, said.plain.split("\n")[2:])) <= 60


def test_a_terminal_20_columns_wide_is_told_what_happened(shown: Shell) -> None:
    lines = shown.terminal("show", "bell-1", columns=20).plain.split("\n")[:-1]
    timeline = lines[lines.index("▸ started: Ring!") :]
    assert max(map(len, timeline)) <= 20
    assert [line.split()[0] for line in timeline] == ["▸", "■", "→", "✗", "✓", "■", "»", "●"]


def test_at_work_killed_and_in_doubt(shell: Shell) -> None:
    """Who drives it and what it does; after a kill, that nobody can say what became of a call that may happen once."""
    running = shell.start("run", "app:smith", "Go", "--run-id", "r")
    running.until(lambda: shell.log("began"), "the tool works")
    now, call = shell.clew("show", "r").lines[-2:]
    assert re.fullmatch(rf"now: driven by process {running.pid} on \S+, epoch 1", now)
    assert call == "  1.tool.1 strike: at work"
    assert running.kill().code == -signal.SIGKILL
    now, call = shell.clew("show", "r").lines[-2:]
    assert now.startswith("now: nobody drives it")
    assert call.startswith("  1.tool.1 strike: in doubt")
    asked = shell.clew("run", "app:smith", "Go", "--run-id", "r")
    assert (asked.code, "r waits: doubt" in asked.err) == (3, True)
    assert "asks: clew decide r/1.tool.1" in shell.clew("show", "r").out
    assert shell.clew("decide", "r/1.tool.1", "respond", '"struck"', "--by", "ada").code == 0
    assert shell.clew("run", "app:smith", "Go", "--run-id", "r").out == "Done.\n"
    told = shell.clew("show", "r").out
    assert "1.tool.1 answered: struck by ada" in told
    assert "↻ taken up by" in told
    assert "? 1.tool.1 strike was in doubt" in told
    assert len(shell.log("began")) == 1


def test_why_it_waits(shell: Shell) -> None:
    shell.accept(app.clerk, "r")

    async def pause(runtime: Runtime) -> None:
        await runtime.pause("r", by="ada")

    shell.aside(pause)
    shell.drive(app.clerk, "r")
    said = shell.clew("show", "r")
    assert said.lines[0].endswith("waiting (paused)")
    assert "now: waits: paused" in said.lines
