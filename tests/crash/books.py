"""Holds the bank's book against the journals. Reads only; answers with what is wrong.

One payment may come behind a finding that it did not happen: that of a process which was frozen between its intent and
the act for longer than anybody waits (T11). Such a one is counted, and must be told apart by its own intent.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clew.core import entries as e
from clew.core.calls import RETRY
from clew.core.entries import Entry
from clew.core.rules import next_effects
from clew.core.tickets import Approve, Reject, Respond
from clew.errors import ClewError
from tests.crash.bank import Line
from tests.crash.payers import LEASE, TIMEOUT
from tests.crash.verdict import Evidence
from tests.runtime.world import check_journal, check_transcript

SECOND = 1_000_000
WAIT = int(max(LEASE, TIMEOUT) * SECOND) + SECOND
NEVER = 1 << 62
KNOWN_NOT = frozenset({"verify", "decision", "ran", "late", "cancelled"})


@dataclass
class Fate:
    """What was done to a process. Microseconds; a kill counts from before it was sent."""

    killed: int = NEVER
    frozen: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def was_frozen(self, begin: int, end: int) -> bool:
        return any(start < end and begin < until for start, until in self.frozen)


@dataclass
class Tally:
    """What a file full of payments came to."""

    runs: int = 0
    cancelled: int = 0
    asked_for: int = 0  # payments that the model asked for
    never_started: int = 0
    attempts: int = 0
    paid: int = 0
    answers: Counter[str] = field(default_factory=Counter[str])
    findings: Counter[str] = field(default_factory=Counter[str])
    open_doubts: int = 0  # which a cancel ended
    by: Counter[str] = field(default_factory=Counter[str])
    doubts: Counter[str] = field(default_factory=Counter[str])
    behind: int = 0
    twice: int = 0
    wrongs: list[str] = field(default_factory=list[str])


@dataclass
class Attempt:
    """From one intent to the next, or to the answer."""

    intent: e.ToolStarted
    pid: int
    raised: e.ToolFailed | None = None
    asked: e.TicketOpened | None = None
    decision: e.DecisionMade | None = None
    findings: list[e.DoubtResolved] = field(default_factory=list[e.DoubtResolved])
    payment: Line | None = None

    def take(self, entry: Entry) -> None:
        match entry:
            case e.ToolFailed(final=False):
                self.raised = entry
            case e.TicketOpened():
                self.asked = entry
            case e.DoubtResolved():
                self.findings.append(entry)
            case _:
                pass

    @property
    def over_at(self) -> int:
        return self.intent.at + WAIT

    @property
    def again(self) -> e.DoubtResolved | None:
        return next((one for one in self.findings if one.rule == RETRY), None)

    @property
    def why(self) -> str:
        if self.raised is None:
            return "its process ended or lost it"
        return "timeout" if self.raised.class_ == "timeout" else "exception"


class Account:
    """One payment: what the journal says of the call beside what the bank says of its key."""

    def __init__(self, tool: str, entries: Sequence[Entry], lines: Sequence[Line], fates: Mapping[int, Fate]) -> None:
        self.tool = tool
        self.entries = entries
        self.fates = fates
        self.payments = [line for line in lines if line.word == "paid"]
        self.questions = [line for line in lines if line.word != "paid"]
        self.attempts = [
            Attempt(intent, int(intent.worker.removeprefix("worker-")))
            for intent in entries
            if isinstance(intent, e.ToolStarted)
        ]
        self.settled = [
            x for x in entries if isinstance(x, e.ToolReturned) or (isinstance(x, e.ToolFailed) and x.final)
        ]
        self.behind: list[Line] = []
        self._sort()

    def _sort(self) -> None:
        """Each entry to the attempt that it is about, a decision to the one whose ticket it closes."""
        for entry in self.entries:
            mine = [attempt for attempt in self.attempts if attempt.intent.seq < entry.seq]
            if isinstance(entry, e.DecisionMade):
                for attempt in mine:
                    if attempt.asked is not None and attempt.asked.ticket == entry.ticket:
                        attempt.decision = entry
            elif mine:
                mine[-1].take(entry)

    def wrongs(self) -> Iterator[str]:
        for check in (self._attempts, self._acts, self._findings, self._patience, self._answer):
            yield from check()

    def _attempts(self) -> Iterator[str]:
        """No attempt follows another but after a finding that it did not happen."""
        numbers = [attempt.intent.attempt for attempt in self.attempts]
        if numbers != sorted(set(numbers)):
            yield f"its attempts are {numbers}"
        for attempt in self.attempts[:-1]:
            if attempt.again is None or attempt.again.finding != "not_done":
                yield f"attempt {attempt.intent.attempt} was repeated after {attempt.findings}"

    def _acts(self) -> Iterator[str]:
        """Each act has its own intent, committed before it by the process that acted."""
        for line in self.payments:
            found = [x for x in self.attempts if (x.intent.attempt, x.pid) == (line.attempt, line.pid)]
            if not found or found[0].intent.at > line.at:
                yield f"{line} has no intent"
            elif found[0].payment is not None:
                yield f"attempt {line.attempt} paid twice: {found[0].payment} and {line}"
            else:
                found[0].payment = line
        for attempt in self.attempts:
            yield from self._in_time(attempt)
        if len(self.payments) - len(self.behind) > 1:
            yield f"it was paid silently more than once: {self.payments}"

    def _in_time(self, attempt: Attempt) -> Iterator[str]:
        """An act behind the finding that there was none can only be that of a process which was frozen too long."""
        line, known = attempt.payment, self._known_not(attempt)
        if line is None or known is None or line.place < known.place:
            return
        self.behind.append(line)
        if line.at < attempt.over_at or not self.fates[line.pid].was_frozen(attempt.intent.at, line.at):
            yield f"{line} came behind {known}, and its process was not frozen for so long"

    def _known_not(self, attempt: Attempt) -> Line | None:
        """The answer of the bank by which it was settled that an attempt had not happened."""
        for finding in attempt.findings:
            if finding.finding == "not_done":
                return self._question(attempt, finding, "none")
        return None

    def _question(self, attempt: Attempt, finding: e.DoubtResolved, answer: str) -> Line | None:
        """The last time that the bank gave this answer to whoever made the finding."""
        word = "asked" if finding.how == "verify" else "looked"
        for line in reversed(self.questions):
            heard = line.word == word and attempt.intent.at <= line.at <= finding.at
            if heard and answer == ("receipt" if "-" in line.answer else line.answer):
                return line
        return None

    def _findings(self) -> Iterator[str]:
        """Whoever found something had it from the bank, and from the right hand."""
        told_as = {"done": "receipt", "not_done": "none", "unknown": "silence"}
        for attempt in self.attempts:
            for finding in attempt.findings:
                if finding.how in ("verify", "decision"):
                    if self._question(attempt, finding, told_as[finding.finding]) is None:
                        yield f"nobody told {finding}"
                elif finding.how == "late" and not any(isinstance(x, e.LateResultReceived) for x in self.entries):
                    yield f"no late result led to {finding}"
            decision = None if attempt.decision is None else attempt.decision.decision
            for finding in attempt.findings:
                told = {"respond": Respond, "reject": Reject, RETRY: Approve}.get(finding.rule)
                if finding.how == "decision" and (told is None or not isinstance(decision, told)):
                    yield f"{finding} does not follow from {decision}"

    def _patience(self) -> Iterator[str]:
        """Nobody is asked what became of a body that may be at it yet."""
        for attempt in self.attempts:
            told = [x.at for x in attempt.findings if x.how == "verify"]
            told += [line.at for line in self.questions if line.word == "asked" and self._is_about(attempt, line)]
            told += [attempt.asked.at] if attempt.asked is not None else []
            if told and min(told) < attempt.over_at and self._may_be_at_it(attempt, min(told)):
                early = (attempt.over_at - min(told)) / SECOND
                yield f"attempt {attempt.intent.attempt} by {attempt.pid} was asked about {early:.3f} s too early"

    def _is_about(self, attempt: Attempt, line: Line) -> bool:
        later = [x.intent.at for x in self.attempts if x.intent.seq > attempt.intent.seq]
        return attempt.intent.at <= line.at < min(later, default=NEVER)

    def _may_be_at_it(self, attempt: Attempt, at: int) -> bool:
        if self.fates[attempt.pid].killed <= at:
            return False
        if attempt.raised is None or attempt.raised.at > at:
            return True
        return self.tool == "wire" and attempt.raised.class_ == "timeout"

    def _answer(self) -> Iterator[str]:
        """What the model was told is what happened."""
        if len(self.settled) != 1:
            yield f"it has {len(self.settled)} answers"
            return
        answer = self.settled[0]
        in_time = [line for line in self.payments if line not in self.behind]
        if isinstance(answer, e.ToolReturned):
            yield from self._happened(answer)
        elif answer.class_ != "outcome_unknown" and (answer.source not in KNOWN_NOT or in_time):
            yield f"it was paid {in_time} and is answered {answer}"
        if not self.attempts and self.payments:
            yield f"it was never started, and is paid: {self.payments}"

    def _happened(self, answer: e.ToolReturned) -> Iterator[str]:
        receipts = [line for line in self.payments if line.answer == answer.content]
        if not receipts:
            yield f"it has the result {answer.content!r}, and the bank has {self.payments}"
        elif answer.source == "ran" and receipts[0].attempt != answer.attempt:
            yield f"attempt {answer.attempt} returned the receipt of {receipts[0]}"
        elif answer.source not in ("ran", "verify", "decision", "late"):
            yield f"nobody can know {answer}"

    def count(self, tally: Tally) -> None:
        tally.asked_for += 1
        tally.never_started += not self.attempts
        tally.attempts += len(self.attempts)
        tally.paid += bool(self.payments)
        tally.behind += len(self.behind)
        tally.twice += len(self.payments) > 1 and bool(self.behind)
        for answer in self.settled[:1]:
            known = isinstance(answer, e.ToolFailed) and answer.class_ != "outcome_unknown"
            word = "returned" if isinstance(answer, e.ToolReturned) else "known not" if known else "unknown"
            detail = f"by {answer.source}" if word != "unknown" else "paid" if self.payments else "not paid"
            tally.answers[f"{word}, {detail}"] += 1
        for attempt in self.attempts:
            self._count_doubt(attempt, tally)

    def _count_doubt(self, attempt: Attempt, tally: Tally) -> None:
        """Each doubt once for what was found of it, and, if the bank was silent, once as unknown."""
        if not attempt.findings:
            return
        tally.doubts[attempt.why] += 1
        silent = [finding for finding in attempt.findings if finding.finding == "unknown"]
        last = attempt.findings[-1]
        if silent:
            tally.findings["unknown"] += 1
        if last.finding != "unknown":
            tally.findings[last.finding] += 1
            tally.by[f"{last.finding}, by {last.how}"] += 1
        elif last.how == "policy":
            tally.open_doubts += 1


def check(evidence: Evidence, lines: Sequence[Line], fates: Mapping[int, Fate], cancelled: set[str]) -> Tally:
    """Everything about a file in which nothing goes on any more."""
    tally = Tally()
    tally.wrongs += evidence.damage()
    by_key: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_key[line.key].append(line)
    for info in evidence.runs():
        entries = evidence.entries(info.run_id)
        tally.runs += 1
        tally.wrongs += [f"run {info.run_id}: {wrong}" for wrong in _course(evidence, info.run_id, entries, tally)]
        if str(info.outcome).startswith("cancelled") and info.run_id not in cancelled:
            tally.wrongs.append(f"run {info.run_id} is cancelled, and nobody asked for that")
        for call in [call for x in entries if isinstance(x, e.ModelReplied) for call in x.calls]:
            key = f"{info.run_id}:{call.call}"
            account = Account(call.tool, _about(call.call, entries), by_key.pop(key, []), fates)
            tally.wrongs += [f"{key} {call.args_text}: {wrong}" for wrong in account.wrongs()]
            account.count(tally)
    tally.wrongs += [f"{line} belongs to nothing that was asked for" for left in by_key.values() for line in left]
    return tally


def _about(call: str, entries: Sequence[Entry]) -> list[Entry]:
    """The entries about one call. Its tickets bear its name, and a number behind it from the second on."""
    return [
        entry
        for entry in entries
        if getattr(entry, "call", None) == call
        or (isinstance(entry, e.DecisionMade) and entry.ticket.partition("~")[0] == call)
    ]


def _course(evidence: Evidence, run: str, entries: Sequence[Entry], tally: Tally) -> Iterator[str]:
    """It ended once, and folds."""
    try:
        state = evidence.state(run, entries)
        check_journal(entries)
        check_transcript(list(state.transcript))
    except (AssertionError, ClewError) as error:
        yield f"its journal is not as journals are: {error}"
        return
    ends = [str(entry.outcome).partition(":")[0] for entry in entries if isinstance(entry, e.RunFinished)]
    tally.cancelled += ends == ["cancelled"]
    if ends not in (["natural"], ["cancelled"]) or next_effects(state):
        yield f"it did not end well, once: {ends}"
    for entry in entries:
        if isinstance(entry, e.TicketOpened) and entry.ticket_kind != "doubt":
            yield f"it asked for something else: {entry}"
