"""What may happen to a run, for the machine that plays it: starts, letters, bodies and what they come to."""

from decimal import Decimal

from hypothesis import strategies as st

from clew.core import entries as e
from clew.core.effects import CallModel, CallTool, Effect, Judge, RunHooks, Verify
from clew.core.limits import Limits
from clew.core.messages import Message, ToolCall, ToolResult, Transcript, Usage, calls_of
from clew.core.state import Call, State
from clew.core.tickets import ALLOWED, Approve, Decision, Edit, Reject, Respond, TicketKind
from tests.core.build import FP, SCREEN, TOOLS, began, decided, late, told_step

ONCE = {tool.name for tool in TOOLS if tool.effect == "once"}
NAMES = ("who", "what", "sleep")
STEPS = ("mail", "post")

tools = st.sampled_from([*[tool.name for tool in TOOLS], *sorted(ONCE), "send", "send", "ship", "fly", "screen"])
usages = st.builds(Usage, input=st.integers(0, 9), output=st.integers(0, 9), requests=st.just(1))
costs = st.none() | st.sampled_from([Decimal("0.1"), Decimal("0.02")])
limits = st.builds(
    Limits,
    turns=st.sampled_from([None, None, 4, 4, 1, 0]),
    tool_calls=st.sampled_from([None, None, None, 1, 4]),
    tokens=st.sampled_from([None, None, None, 20]),
    cost=st.sampled_from([None, None, None, Decimal("0.2")]),
    model_errors=st.sampled_from([None, None, 1, 3]),
    repeats=st.sampled_from([None, None, None, 2]),
    tool=st.sampled_from([None, None, None, "pay"]),
    on_limit=st.sampled_from(["stop", "ask", "ask"]),
)
starts = st.fixed_dictionaries(
    {
        "limits": limits,
        "fingerprint": st.sampled_from(
            [*[FP] * 5, "sha256:typed", "sha256:typed", "sha256:gone", "sha256:guarded", "sha256:watched", "sha256:2"]
        ),
        "client_tools": st.sampled_from([(), (SCREEN,)]),
    }
)
CANCEL = e.CancelRequested(reason="enough", by="ada")
SAID = e.MessagesReceived(messages=(Message.user("and"),), inbox=(1,))
letters = st.sampled_from([*[SAID] * 4, *[e.Paused()] * 2, e.Unpaused(), decided("9.tool.9", Approve()), CANCEL])
letters_while_paused = st.sampled_from([*[e.Unpaused()] * 5, e.Paused(), SAID, CANCEL])
verdicts = st.sampled_from(["pass", "allow", "ask", "ask", "ask", "deny", "answer", "block"])
pick = st.integers(0, 30)


def one_in(number: int) -> st.SearchStrategy[bool]:
    return st.sampled_from([False] * (number - 1) + [True])


def decisions(kind: TicketKind) -> st.SearchStrategy[Decision]:
    """What may be decided about such a ticket."""
    made: dict[type[Decision], Decision] = {
        Approve: Approve(remember="run"),
        Edit: Edit({"turns": 9} if kind == "limit" else {"a": 1}),
        Reject: Reject("no"),
        Respond: Respond(1),
    }
    return st.sampled_from([made[kind_] for kind_ in ALLOWED[kind]])


Performed = CallModel | CallTool | Judge | Verify | RunHooks


class Flight:
    """Something that is being performed; a body sees its call as it was when it began."""

    def __init__(self, effect: Performed, state: State) -> None:
        self.effect = effect
        self.call = next((call for call in state.calls if call.id == effect.step), None)
        self.open: list[str] = []  # steps
        self.done: set[str] = set()
        self.leaving = False

    def begins(self, name: str) -> list[e.Entry]:
        """A step that must not happen twice begins; one that is recorded is simply read."""
        assert self.call is not None
        step = f"{self.call.id}:{name}"
        if step in self.open or step in self.done or self.call.recorded(step):
            return []
        assert not any(x.step == step for x in self.call.steps), "it began before, and nobody knows what came of it"
        self.open.append(step)
        return [began(step)]

    def ends_step(self) -> list[e.Entry]:
        step = self.open.pop()
        self.done.add(step)
        return [told_step(step, 1)]

    def lets_go(self, names: list[str], due: int | None, on_expire: str) -> list[e.Entry]:
        """What it stands at: known waits that have not come when it began, and new ones."""
        call = self.call
        assert call is not None
        known = {wait.opened.ticket for wait in call.waits if isinstance(wait.opened, e.TicketOpened)}
        standing: list[e.Entry] = []
        number = len(known)
        for name in names:
            step = f"{call.id}:{name}"
            wait = call.wait(step)
            if wait is not None:
                assert wait.closed is None or has_an_answer(wait.closed), "its question is to be asked anew"
                standing.extend([wait.opened] if wait.closed is None else [])
            elif name == "sleep":
                standing.append(e.TimerSet(step=step, timer=step, due=due or 0))
            else:
                number += 1
                ticket = call.id if number == 1 else f"{call.id}~{number}"
                standing.append(
                    e.TicketOpened(
                        step=step,
                        ticket=ticket,
                        ticket_kind="question",
                        call=call.id,
                        expires_at=due,
                        on_expire=on_expire,  # type: ignore[arg-type]
                    )
                )
        self.leaving = bool(standing)
        return standing

    @property
    def ghosts(self) -> list[e.LateResultReceived]:
        """What it may be known to have come to, once nobody waits for it."""
        if not isinstance(self.effect, CallTool):
            return []
        return [late(step, "late") for step in (*self.open, self.effect.step)]


def has_an_answer(closed: object) -> bool:
    return not (isinstance(closed, e.TicketClosed) and closed.applied in ("escalate", "cancel"))


def is_in_doubt(call: Call) -> bool:
    """Whether nobody could say, from its entries alone, what such a call has done."""
    return (call.intent is not None and call.intent.effect == "once") or bool(unreported(call))


def unreported(call: Call) -> set[str | None]:
    """Steps of a call that began and never reported."""
    began_ = {x.step for x in call.steps if isinstance(x, e.StepStarted)}
    return began_ - {x.step for x in call.steps if isinstance(x, e.StepRecorded)}


def due_of(effect: Effect) -> int | None:
    return getattr(effect, "not_before", None)


def ends(entry: e.Entry) -> bool:
    return isinstance(entry, e.ToolReturned) or (isinstance(entry, e.ToolFailed) and entry.final)


def asked_by(entry: e.Entry) -> tuple[ToolCall, ...]:
    return entry.calls if isinstance(entry, e.ModelReplied) else ()


def valid(transcript: Transcript) -> list[str]:
    """The ids of calls without results at the end. Each other call has one result, in order, right after its reply."""
    owed: list[str] = []
    ids: list[str] = []
    for message in transcript:
        if message.role == "tool":
            (result,) = message.parts
            assert isinstance(result, ToolResult)
            assert owed, "a result of no call"
            assert result.call == owed.pop(0)
        else:
            assert not owed, "something stands between a call and its result"
            owed = [c.id for c in calls_of(message.parts)]
        ids.append(message.id)
    assert len(set(ids)) == len(ids)
    return owed
