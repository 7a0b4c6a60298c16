"""What a driver does with facts in hand when the store has moved on without it."""

import msgspec

from clew.core import entries as e
from clew.core.effects import CallModel
from clew.core.letters import LateResultLetter
from clew.core.rules import next_effects
from clew.core.state import State
from clew.core.values import Digest
from clew.runtime.flight import Done
from clew.runtime.values import referred


def still_news(state: State, done: Done) -> Done:
    """Of the facts in hand, those that still belong into the journal as it was read back."""
    return Done(tuple(entry for entry in done.entries if _is_news(state, entry)), done.blobs)


def _is_news(state: State, entry: e.Entry) -> bool:
    match entry:
        case e.ModelReplied() | e.ModelFailed():
            asked = [effect for effect in next_effects(state) if isinstance(effect, CallModel)]
            return any((effect.step, effect.attempt) == (entry.step, entry.attempt) for effect in asked)
        case e.ToolReturned() | e.ToolFailed():
            return any((call.id, call.failures + 1) == (entry.call, entry.attempt) for call in state.open_calls)
        case e.DoubtResolved():
            return any(call.id == entry.call and call.finding is None for call in state.open_calls)
        case _:
            return False


def late_letters(done: Done, epoch: int, worker: str) -> list[LateResultLetter]:
    """What whoever drives the run now should know: results of bodies that ran here."""
    ran = [
        entry for entry in done.entries if isinstance(entry, e.ToolReturned | e.ToolFailed) and entry.source == "ran"
    ]
    return [_letter(entry, done.blobs, epoch, worker) for entry in ran]


def _letter(
    entry: e.ToolReturned | e.ToolFailed, blobs: dict[Digest, bytes], epoch: int, worker: str
) -> LateResultLetter:
    if isinstance(entry, e.ToolFailed):
        return LateResultLetter(call=entry.call, from_epoch=epoch, error=f"{entry.class_}: {entry.message}", by=worker)
    aside = referred(entry.content)
    value = entry.content if aside is None else msgspec.json.decode(blobs[aside])
    return LateResultLetter(call=entry.call, from_epoch=epoch, value=value, by=worker)
