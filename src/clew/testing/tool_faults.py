"""Faults in what a tool may trust: doubt, steps, waits, verdicts, state, limits. Planted as those of `faults` are."""

from typing import Any

from msgspec.structs import replace

from clew.core import calls, proceeding, rules, state, turns
from clew.core import entries as e
from clew.core.course import Course
from clew.core.effects import CallTool, Record
from clew.core.state import State
from clew.runtime import bodies, judging, merging, recovery, verbs, verifying
from clew.runtime.flight import Done
from clew.testing.planting import Fault, always, replacing


def _no_intent(_whole: Any) -> Any:
    def start(_state: State, call: calls.Call, _tool: Any) -> CallTool:
        return CallTool(call.id, call.attempt, call.retry_at)

    return start


def _doubt_is_retried(_whole: Any) -> Any:
    def settle(_state: State, call: calls.Call, _here: Any) -> tuple[Record, ...]:
        entry = e.DoubtResolved(step=call.id, call=call.id, how="policy", finding="unknown", rule=calls.RETRY)
        return (Record(entry),)

    return settle


def _raised_is_an_answer(whole: Any) -> Any:
    def failed(self: Any, *args: Any, **given: Any) -> Done:
        if given.get("source") == "doubt":
            given |= {"source": "ran", "final": None}
        done: Done = whole(self, *args, **given)
        return done

    return failed


def _steps_forgotten(_whole: Any) -> Any:
    def recorded(_self: calls.Call, _step: str) -> None:
        return None

    return recorded


def _anything_is_an_answer(whole: Any) -> Any:
    async def perform(self: Any, *args: Any) -> Done:
        flight, self._flight = self._flight, _NeverLetGo(self._flight)
        done: Done = await whole(self, *args)
        self._flight = flight
        return done

    return perform


class _NeverLetGo:
    """A flight that does not know that its body has let go."""

    let_go = False

    def __init__(self, flight: Any) -> None:
        self._flight = flight

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flight, name)


def _raising_allows(whole: Any) -> Any:
    def opinion(name: str, said: Any) -> Any:
        return None if hasattr(said, "error") else whole(name, said)

    return opinion


def _last_one_wins(whole: Any) -> Any:
    def ops(state: State, writer: str, updates: Any, blobs: Any) -> Any:
        return whole(replace(state, course=replace(state.course, writes={})), writer, updates, blobs)

    return ops


def _retries_anything(_whole: Any) -> Any:
    def may_retry(self: Any, _tool: Any, declared: Any, error: BaseException) -> bool:
        return self._call.failures < declared.retries and isinstance(error, Exception)

    return may_retry


def _any_arguments(_whole: Any) -> Any:
    def bound(*_args: Any) -> bool:
        return True

    return bound


FAULTS: dict[str, Fault] = {
    "intent-missing": Fault(
        ("T1", "T2"), "a once call starts without its intent", replacing(proceeding, "_start", _no_intent)
    ),
    "doubt-retried": Fault(
        ("T2",), "a call in doubt is simply run again", replacing(proceeding, "_settle_doubt", _doubt_is_retried)
    ),
    "exception-not-doubted": Fault(
        ("T2",),
        "a once body that raised counts as not happened",
        replacing(bodies.Body, "_failed", _raised_is_an_answer),
    ),
    "verify-unasked": Fault(
        ("T2",), "nobody is asked what became of a call", replacing(verifying, "_asked", always(None))
    ),
    "steps-run-again": Fault(
        ("T5",), "a recorded step is run again", replacing(calls.Call, "recorded", _steps_forgotten)
    ),
    "other-steps-value": Fault(
        ("T5",),
        "a step gets the value of one with other arguments",
        replacing(verbs, "fingerprint", always("sha256:0")),
    ),
    "retries-unknown": Fault(
        ("T7",), "a once call is retried whatever it raised", replacing(bodies.Body, "_may_retry", _retries_anything)
    ),
    "last-writer-wins": Fault(
        ("T9",), "state depends on which call ended last", replacing(merging, "_ops", _last_one_wins)
    ),
    "policy-error-allows": Fault(
        ("T10",), "a policy that raises has nothing against it", replacing(judging, "_opinion", _raising_allows)
    ),
    "late-results-dropped": Fault(
        ("T11",), "what a fenced worker knows is lost", replacing(recovery, "_ran", always(False))
    ),
    "owner-not-waited-for": Fault(
        ("T11",), "a doubt is settled while its owner may be at it", replacing(bodies, "over_at", always(0))
    ),
    "stop-conditions-forgotten": Fault(
        ("L9",), "what a run has seen does not stop it", replacing(turns, "stopped_by_text", always(None))
    ),
    "repeats-uncounted": Fault(
        ("L9",), "the same reply for ever", replacing(state, "replied", lambda _whole: _unchanged)
    ),
    "cut-off-is-final": Fault(
        ("L6",), "an answer that was cut off counts as whole", replacing(rules, "_goes_on", always(False))
    ),
    "let-go-unheard": Fault(
        ("W7",),
        "what a body says while it is unwound counts",
        replacing(bodies.Body, "perform", _anything_is_an_answer),
    ),
    "approval-of-anything": Fault(
        ("W4",), "an approval holds for another schema too", replacing(proceeding, "_bound", _any_arguments)
    ),
}


def _unchanged(before: Course, *_said: Any) -> Course:
    return before
