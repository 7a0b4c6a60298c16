"""What a driver does with facts in hand when the store has moved on without it."""

import logging
from collections.abc import Sequence

import msgspec

from clew.core import entries as e
from clew.core.effects import NOWHERE, CallModel, Here
from clew.core.letters import LateResultLetter
from clew.core.rules import next_effects
from clew.core.state import State
from clew.core.values import Digest
from clew.errors import NotFound, RunEnded, StoreUnavailable
from clew.ports import Store
from clew.runtime.flight import Done
from clew.runtime.values import referred

log = logging.getLogger("clew.driver")


def still_news(state: State, done: Done, here: Here = NOWHERE) -> Done:
    """The facts in hand, if they still belong into the journal as it was read back.

    They came of one effect and go into one batch, with what was given to state keys: all of them, or none.
    """
    return done if done.entries and _is_news(state, done.entries[0], here) else Done()


def _is_news(state: State, entry: e.Entry, here: Here) -> bool:
    match entry:
        case e.ModelReplied() | e.ModelFailed():
            asked = [effect for effect in next_effects(state, here) if isinstance(effect, CallModel)]
            return any((effect.step, effect.attempt) == (entry.step, entry.attempt) for effect in asked)
        case e.ToolReturned() | e.ToolFailed():
            return any((call.id, call.attempt) == (entry.call, entry.attempt) for call in state.open_calls)
        case e.DoubtResolved():
            return any(call.id == entry.call and call.finding is None for call in state.open_calls)
        case _:
            return False


def late_letters(done: Done, epoch: int, worker: str) -> list[LateResultLetter]:
    """What whoever drives the run now should know: results of bodies, and of steps inside of them, that ran here."""
    return [_letter(entry, done.blobs, epoch, worker) for entry in done.entries if _ran(entry)]


def _ran(entry: e.Entry) -> bool:
    match entry:
        case e.ToolReturned(source="ran") | e.ToolFailed(source="ran", final=True):
            return True
        case e.StepRecorded(effect="once"):
            return True
        case _:
            return False


def _letter(entry: e.Entry, blobs: dict[Digest, bytes], epoch: int, worker: str) -> LateResultLetter:
    step, attempt = entry.step or "", entry.attempt
    match entry:
        case e.ToolFailed(class_=class_, message=message) | e.StepRecorded(error=e.StepError(class_, message)):
            error = f"{class_}: {message}"
            return LateResultLetter(call=step, attempt=attempt, from_epoch=epoch, error=error, by=worker)
        case e.ToolReturned(content=value) | e.StepRecorded(value=value):
            aside = referred(value)
            whole = value if aside is None else msgspec.json.decode(blobs[aside])
            return LateResultLetter(call=step, attempt=attempt, from_epoch=epoch, value=whole, by=worker)
        case _:
            raise AssertionError(f"{entry.kind} is no late result")


async def post_late(store: Store, run: str, letters: Sequence[LateResultLetter]) -> None:
    """Leave what is known to whoever drives the run now; one that is over takes nothing more."""
    for letter in letters:
        try:
            await store.post(run, letter)
        except (RunEnded, NotFound, StoreUnavailable) as error:
            log.warning("run %s: a late result of %s found no taker: %s", run, letter.call, error)
