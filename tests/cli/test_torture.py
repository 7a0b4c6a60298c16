"""`clew torture`: it finds the double payment that is planted in one example, and passes the other."""

import pytest

from tests.cli.conftest import Shell
from tests.docs.reading import ROOT

BAD, GOOD = ROOT / "examples" / "payments_bad.py", ROOT / "examples" / "payments_good.py"
LOOK = ("--reset", "reset", "--check", "check")


@pytest.fixture
def shop(shell: Shell) -> Shell:
    """A shell whose examples keep their ledgers in its own folder."""
    (shell.folder / "tmp").mkdir()
    return shell


def test_it_finds_the_planted_double_payments(shop: Shell) -> None:
    said = shop.clew("torture", f"{BAD}:agent", "Pay the invoices", *LOOK, TMPDIR="tmp")
    assert (said.code, said.err) == (1, "")
    for number, invoice in ((3, "A-17"), (5, "B-04"), (7, "C-31")):
        assert f"the check found: before commit {number}: {invoice} was paid 2 times" in said.out
    assert "ran twice" not in said.out
    assert "came out differently" not in said.out
    assert said.lines[-1] == "crashes show: see above"


def test_it_passes_what_is_written_well(shop: Shell) -> None:
    said = shop.clew("torture", f"{GOOD}:agent", "Pay the invoices", *LOOK, TMPDIR="tmp")
    assert (said.code, said.err) == (0, "")
    assert said.lines[-1] == "nothing ran twice, nothing came out differently, the check found nothing"


def test_as_json_it_is_one_report(shop: Shell) -> None:
    words = ("Pay the invoices", *LOOK)
    [bad] = shop.json("torture", "torture", f"{BAD}:agent", *words, code=1, TMPDIR="tmp")
    assert (bad["ok"], bad["repeated"], bad["differing"], bad["calm"]) == (False, [], [], "natural")
    assert len(bad["wrong"]) == 9
    assert bad["rerun"] == {"pay": 9}
    [good] = shop.json("torture", "torture", f"{GOOD}:agent", *words, TMPDIR="tmp")
    assert (good["ok"], good["wrong"], good["points"]) == (True, [], bad["points"])


def test_without_a_check_it_says_that_nobody_looked(shop: Shell) -> None:
    said = shop.clew("torture", "payments:bad", "Pay")
    assert said.code == 0
    assert said.lines[-1] == "what the outside world saw was not looked at: name a function with --check"


def test_a_check_that_raises_is_a_finding(shop: Shell) -> None:
    said = shop.clew("torture", "payments:bad", "Pay", "--reset", "reset", "--check", "paid_once")
    assert said.code == 1
    assert "AssertionError: the ledger has ['A-17', 'A-17']" in said.out


def test_a_call_that_may_happen_once_is_in_doubt_and_no_finding(shop: Shell) -> None:
    shop.open_gate("strike")
    said = shop.clew("torture", "app:smith", "Go")
    assert said.code == 0
    assert "times nobody could say whether a once call had happened: it was not repeated" in said.out


def test_a_run_that_fails_without_a_crash_is_pointed_out(shop: Shell) -> None:
    said = shop.clew("torture", "app:speechless", "Go")
    assert said.code == 0
    assert "without a crash the run ends error" in said.out


def test_on_a_terminal_it_shows_how_far_it_is_and_takes_that_away(shop: Shell) -> None:
    said = shop.terminal("torture", "payments:good", "Pay", "--reset", "reset", "--check", "paid_once")
    assert said.code == 0
    assert "crashing" in said.out
    assert said.plain.split("\n")[-2].endswith("the check found nothing")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(("app:desk",), "say which with --agent", id="several-agents"),
        pytest.param(("app:meteo", "--check", "nix"), "'nix' names no function", id="no-function"),
        pytest.param(("app:meteo", "--check", "number"), "'number' names no function", id="no-callable"),
        pytest.param(("app:meteo", "--reset", "nix:reset"), "there is no module 'nix' here", id="no-module"),
    ],
)
def test_what_cannot_be_is_refused(shop: Shell, words: tuple[str, ...], told: str) -> None:
    target, *options = words
    assert told in shop.refused(2, "torture", target, "Go", *options)
