"""`clew demo`: the story, told by a process that starts, kills, freezes and thaws the others."""

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import click

from clew.app import Runtime
from clew.cli.common import Common, perform, shared
from clew.cli.demo.child import TASK
from clew.cli.demo.shop import INVOICES, Ledger, bookkeeper
from clew.cli.output import print_json, say
from clew.cli.timeline import Narrator, print_line
from clew.core import entries as e
from clew.errors import ClewError

SECOND = "B-04"
LEASE, SHORT_LEASE = 30.0, 1.0
PATIENCE = 20.0  # seconds that a process of the demo may take
COLUMNS = 74


class DemoFailed(ClewError):
    """A process of the demo did not do what it was started for."""


@click.command(
    "demo",
    short_help="See an agent killed, and nothing lost.",
    epilog="Example: clew demo --keep ./clew-demo. It takes about ten seconds.",
)
@click.option(
    "--keep",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where its files go, instead of a temporary folder.",
)
@shared
@click.pass_obj
def command(common: Common, keep: Path | None) -> None:
    """See what Clew is for: an agent that pays invoices is killed in the middle, and each invoice is paid once."""
    folder = Path(tempfile.mkdtemp(prefix="clew-demo-")) if keep is None else keep
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "clew.db").exists():
        raise click.UsageError(f"{folder} holds the files of an earlier demo: name another folder")
    story = Story(folder.resolve(), quiet=common.json)
    story.tell()
    if common.json:
        print_json({"folder": str(story.folder), "paid": story.paid})


class Child:
    """One process that drives a run; `stop_in` names the payment in the middle of which it stops and waits."""

    def __init__(self, folder: Path, run: str, *, lease: float = LEASE, stop_in: str = "") -> None:
        arguments = [str(folder), run, str(lease), *([stop_in] if stop_in else [])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "clew.cli.demo.child", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next thing it says."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline().strip()
        if not said:
            raise DemoFailed(f"a process of the demo ended without a word:\n{self.errors()}")
        return said

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def gone(self) -> int:
        return self.process.wait(PATIENCE)

    def discard(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def child(folder: Path, run: str, *, lease: float = LEASE, stop_in: str = "") -> Generator[Child]:
    started = Child(folder, run, lease=lease, stop_in=stop_in)
    try:
        yield started
    finally:
        started.discard()


class Story:
    """Three acts, and what to do next."""

    def __init__(self, folder: Path, *, quiet: bool) -> None:
        self.folder = folder
        self.paid: dict[str, int] = {}
        self._quiet = quiet
        self._ledger = Ledger(folder / "ledger.db")

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'clew.db'}"

    def tell(self) -> None:
        self._kill()
        self._freeze()
        self._watch()
        self._next()

    # --- the acts

    def _kill(self) -> None:
        self._act("A kill", f"An agent is to pay {', '.join(INVOICES)}, and is killed in the middle of the second.")
        with child(self.folder, "kill", stop_in=SECOND) as first:
            first.line()
            self._say(
                f"process {first.pid} has {SECOND} in the ledger, and no result of it in the journal: SIGKILL", "red"
            )
            first.signal(signal.SIGKILL)
            first.gone()
        self._journal("kill")
        self._paid("kill", whole=False)
        self._say("")
        with child(self.folder, "kill") as second:
            self._say(f"process {second.pid} finds the run in the file and goes on:", "green")
            said = second.line()
        self._journal("kill", after_crash=True)
        self._quote(said)
        self._paid("kill")

    def _freeze(self) -> None:
        self._act("A thaw", "A process freezes in the middle of the second payment. It is taken for dead.")
        with child(self.folder, "freeze", lease=SHORT_LEASE, stop_in=SECOND) as frozen:
            frozen.line()
            frozen.signal(signal.SIGSTOP)
            self._say(f"process {frozen.pid} is frozen; its lease is {SHORT_LEASE:g} s", "blue")
            begun = time.monotonic()
            with child(self.folder, "freeze", lease=SHORT_LEASE) as other:
                said = other.line()
                self._say(
                    f"process {other.pid} has taken over and is done, {time.monotonic() - begun:.1f} s later", "green"
                )
                self._quote(said)
            frozen.signal(signal.SIGCONT)
            frozen.go_on()
            frozen.line()
            self._say(f"process {frozen.pid} thaws, wants to write its result, and may not:", "yellow")
            self._quote("  " + frozen.errors().splitlines()[0])
        self._paid("freeze")

    def _watch(self) -> None:
        self._act("A second pair of eyes", "A run is watched from another process, as it happens.")
        with child(self.folder, "watch") as driver:
            command = [sys.executable, "-m", "clew", "--store", self.url, "watch", "watch"]
            perform(self._there("watch"))
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
                assert watching.stdout is not None
                for line in watching.stdout:
                    self._quote(line.rstrip())
            driver.line()
        if watching.returncode != 0:
            raise DemoFailed(f"`clew watch` ended with {watching.returncode}")

    def _next(self) -> None:
        self._act("What next", f"Everything is in {self.folder}, for you to look at:")
        prefix = f"clew --store {self.url}"
        for line in (f"{prefix} runs", f"{prefix} show kill", f"{prefix} show freeze --json"):
            self._say(f"  {line}", "cyan")
        self._say("")
        self._say(
            "Your own agent: `clew run --help`, and docs/first-hour.md in the source. How to crash it on purpose: "
            "`clew torture --help`."
        )

    # --- what is shown

    async def _there(self, run: str) -> None:
        """Until the driver has made the run."""
        agent = bookkeeper(self._ledger)
        async with Runtime(self.url, drive=False) as runtime:
            await runtime.start(agent, TASK, run_id=run)

    def _journal(self, run: str, *, after_crash: bool = False) -> None:
        perform(self._print_journal(run, after_crash=after_crash))

    async def _print_journal(self, run: str, *, after_crash: bool) -> None:
        async with Runtime(self.url, drive=False) as runtime:
            entries = await runtime.store.read(run)
        narrator = Narrator()
        shown = not after_crash
        for entry in entries:
            shown = shown or (isinstance(entry, e.DriverAttached) and entry.epoch > 1)
            for line in narrator.tell(entry):
                if shown and not self._quiet:
                    print_line(line, narrator.begun)

    def _paid(self, run: str, *, whole: bool = True) -> None:
        """The ledger and the journal side by side."""
        rows = Counter(invoice for invoice, _ in self._ledger.payments(run))
        results = perform(self._results(run))
        self._say(f"{'invoice':10}{'rows in the ledger':22}{'results in the journal':22}", bold=True)
        for invoice, amount in INVOICES.items():
            odd = rows[invoice] != results[invoice]
            line = f"{invoice:10}{f'{rows[invoice]} of {amount}' if rows[invoice] else '-':22}{results[invoice] or '-'}"
            self._say(line, "yellow" if odd else "green")
        self.paid.update(rows)
        if whole and rows != Counter(INVOICES.keys()):
            raise DemoFailed(f"the ledger of run {run!r} is wrong: {dict(rows)}")

    async def _results(self, run: str) -> Counter[str]:
        names = list(INVOICES)
        async with Runtime(self.url, drive=False) as runtime:
            found = [entry.call for entry in await runtime.store.read(run) if isinstance(entry, e.ToolReturned)]
        return Counter(names[int(call.partition(".")[0]) - 1] for call in found)

    def _act(self, title: str, text: str) -> None:
        self._say("")
        self._say(f"── {title} {'─' * (COLUMNS - len(title))}", "cyan", bold=True)
        self._say(text)
        self._say("")

    def _quote(self, text: str) -> None:
        self._say(f"  │ {text.removeprefix('done ')}")

    def _say(self, text: str, colour: str | None = None, *, bold: bool = False) -> None:
        if not self._quiet:
            say(text, fg=colour, bold=bold)
