"""E1 across processes: what is said in one is seen in another, from the first word, once, and only while watched."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from clew import Message, ToolContext, tool
from clew.core.deltas import ProgressDelta, ResetDelta, TextDelta
from clew.errors import ModelError
from clew.messages import Text
from clew.ports import ModelReply
from clew.testing import call
from tests.runtime.world import Fragments, Stop, World, agent, until

pytestmark = [pytest.mark.proves("E1"), pytest.mark.parametrize("kind", ["sqlite"], indirect=True)]


def whole(text: str) -> ModelReply:
    return ModelReply(parts=(Text(text),))


def side_files(world: World) -> list[str]:
    return sorted(path.suffix for path in world.path.parent.glob("clew.db-live/*"))


class Reading:
    """Somebody who watches a run, and what he has seen so far."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self.seen: list[Any] = []
        self.task = asyncio.create_task(self._read(items))

    async def _read(self, items: AsyncIterator[Any]) -> None:
        async for item in items:
            self.seen.append(item)

    @property
    def text(self) -> str:
        return "".join([item.text for item in self.seen if isinstance(item, TextDelta)])

    @property
    def words(self) -> str:
        return "".join(self.seen)


async def test_text_is_seen_elsewhere_as_it_streams_and_late_joiners_get_all_of_it_once(world: World) -> None:
    first, second = Stop(), Stop()
    model = Fragments(["Once ", "upon ", first, "a ", second, "time.", whole("Once upon a time.")])
    here = await world.open(agent(model))
    there = await world.open(drive=False)
    run = await here.start(agent(model), "Go", run_id="r")
    await first.reached()
    early = Reading((await there.get("r")).watch())
    await until(lambda: early.text == "Once upon ")
    first.let_go()
    await second.reached()
    late = Reading((await there.get("r")).watch())
    words = Reading((await there.get("r")).text())
    await until(lambda: early.text == late.text == words.words == "Once upon a ")
    second.let_go()
    await run.result()
    await asyncio.wait([early.task, late.task, words.task])
    assert words.words == "Once upon a time."
    for reading in (early, late):
        assert reading.seen[-1].kind == "run_finished"
        offsets = [item.offset for item in reading.seen if isinstance(item, TextDelta)]
        assert offsets == sorted(set(offsets))
    await until(lambda: side_files(world) == [])


async def test_nothing_is_written_while_nobody_elsewhere_watches(world: World) -> None:
    held = Stop()
    model = Fragments(["One ", held, "two.", whole("One two.")])
    here = await world.open(agent(model))
    run = await here.start(agent(model), "Go", run_id="r")
    at_home = Reading(run.watch())
    await held.reached()
    await until(lambda: at_home.text == "One ")
    await asyncio.sleep(0.1)
    assert side_files(world) == []
    held.let_go()
    await run.result()


async def test_the_side_file_may_be_deleted_at_any_time(world: World) -> None:
    stops = [Stop() for _ in range(3)]
    model = Fragments(["a", stops[0], "b", stops[1], "c", stops[2], "d", whole("abcd")])
    here = await world.open(agent(model))
    there = await world.open(drive=False)
    run = await here.start(agent(model), "Go", run_id="r")
    await stops[0].reached()
    reading = Reading((await there.get("r")).watch())
    for stop, text in zip(stops, ("a", "ab", "abc"), strict=True):
        await stop.reached()
        await until(lambda text=text: reading.text == text)
        for path in world.path.parent.glob("clew.db-live/*.live"):
            path.unlink()
        stop.let_go()
    await run.result()
    await reading.task
    assert "abcd".startswith(reading.text)
    assert reading.seen[-1].kind == "run_finished"


async def test_a_new_attempt_voids_what_the_old_one_said_elsewhere_too(world: World) -> None:
    held, again = Stop(), Stop()
    broken = ["Onc", held, ModelError("overloaded", retry_after=0)]
    model = Fragments(broken, ["Twice", again, ".", whole("Twice.")])
    here = await world.open(agent(model))
    there = await world.open(drive=False)
    run = await here.start(agent(model), "Go", run_id="r")
    await held.reached()
    reading = Reading((await there.get("r")).watch())
    await until(lambda: reading.text == "Onc")
    held.let_go()
    await again.reached()
    await until(lambda: reading.text == "OncTwice")
    assert [item.attempt for item in reading.seen if isinstance(item, ResetDelta)] == [2]
    again.let_go()
    await run.result()
    await reading.task


async def test_progress_of_a_tool_is_seen_elsewhere(world: World) -> None:
    held = Stop()

    @tool(effect="read")
    async def load(ctx: ToolContext[object]) -> str:
        ctx.emit({"percent": 10})
        ctx.emit({"percent": 50})
        await held.arrive()
        return "loaded"

    loader = agent([[call("load")], "Done."], load)
    here = await world.open(loader)
    there = await world.open(drive=False)
    run = await here.start(loader, "Go", run_id="r")
    await held.reached()
    reading = Reading((await there.get("r")).watch())
    await until(lambda: len([x for x in reading.seen if isinstance(x, ProgressDelta)]) == 2)
    assert [x.value["percent"] for x in reading.seen if isinstance(x, ProgressDelta)] == [10, 50]
    held.let_go()
    await run.result()
    await reading.task


async def test_who_comes_after_the_end_hears_the_journal_only(world: World) -> None:
    model = Fragments(["Hi", whole("Hi.")])
    here = await world.open(agent(model))
    there = await world.open(drive=False)
    run = await here.start(agent(model), "Go", run_id="r")
    await run.result()
    reading = Reading((await there.get("r")).watch())
    await reading.task
    assert reading.text == ""
    assert reading.seen[-1].kind == "run_finished"


async def test_a_side_file_of_nonsense_disturbs_nobody(world: World) -> None:
    held = Stop()
    model = Fragments(["Hi", held, " you.", whole("Hi you.")])
    here = await world.open(agent(model))
    there = await world.open(drive=False)
    run = await here.start(agent(model), [Message.user("Go")], run_id="r")
    await held.reached()
    reading = Reading((await there.get("r")).text())
    await until(lambda: reading.words == "Hi")
    [live] = world.path.parent.glob("clew.db-live/*.live")
    live.write_bytes(live.read_bytes() + b'\xff\x00 not json\n{"after": 1}\n[]\n')
    held.let_go()
    assert (await run.result()).text == "Hi you."
    await reading.task
    assert reading.words == "Hi you."


async def test_a_full_disk_beside_the_database_costs_only_the_words(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    held = Stop()
    model = Fragments(["Hi", held, " you.", whole("Hi you.")])
    here = await world.open(agent(model))
    there = await world.open(drive=False)
    run = await here.start(agent(model), "Go", run_id="r")
    await held.reached()
    monkeypatch.setattr("clew.stores.sqlite.relay.os", type("Full", (), {**vars(os), "write": staticmethod(full)}))
    reading = Reading((await there.get("r")).text())
    await asyncio.sleep(0.15)
    assert reading.seen == []
    held.let_go()
    assert (await run.result()).text == "Hi you."
    await reading.task
    assert reading.words == "Hi you."
