"""W11: one active run per thread; the others queue, each goes on from where the one before it ended."""

import asyncio
import itertools
from typing import Any

import pytest

from clew import tool
from clew.core import entries as e
from clew.core.outcomes import Cancelled, Failed
from clew.errors import Conflict, ModelError, NotFound, RunBusy, UsageError
from clew.testing import FunctionModel, call
from tests.runtime.world import Fragments, Stop, World, agent, becomes, check_run, check_transcript, gate_of, kinds, of


def echo(held: Stop | None = None) -> Any:
    """An agent that answers what was said last; its first answer may be held."""

    async def answer(messages: Any, _tools: Any) -> str:
        if held is not None and not held.passed:
            await held.arrive()
        return f"to {messages[-1].text}"

    return agent(FunctionModel(answer), name="echo")


def said(messages: Any) -> list[str]:
    return [message.text for message in messages]


def conversation(*words: str) -> list[str]:
    return [text for word in words for text in (word, f"to {word}")]


@pytest.mark.proves("W11", "B4", "B1")
async def test_runs_queue_in_order_and_go_on_from_the_heads_end(world: World) -> None:
    held = Stop()
    talker = echo(held)
    rt = await world.open(talker)
    runs = [await rt.start(talker, word, run_id=word, thread_id="t") for word in "abcd"]
    await held.reached()
    thread = rt.thread("t")
    assert await thread.queue() == ("b", "c", "d")
    for run in runs[1:]:
        info = await run.info()
        assert (info.status, info.base) == ("queued", e.BaseThread())
        assert kinds(await run.entries()) == ["run_started"]
    held.let_go()
    for run in runs:
        await run.result()
    assert said(await thread.messages()) == conversation(*"abcd")
    for before, run in itertools.pairwise(runs):
        entries = await check_run(run)
        fixed = of(entries, e.BaseFixed)
        assert [(x.run, x.base_seq) for x in fixed] == [(before.id, len(await before.entries()))]
        assert kinds(entries)[1:3] == ["base_fixed", "driver_attached"]
    moves = [(b.run, b.heads) for b in gate_of(rt).batches if b.heads]
    assert [(run, [(m.expected, m.new) for m in heads]) for run, heads in moves] == [
        ("b", [("a", "b")]),
        ("c", [("b", "c")]),
        ("d", [("c", "d")]),
    ]
    assert all("base_fixed" in kinds(b.entries) for b in gate_of(rt).batches if b.heads)
    assert await thread.queue() == ()
    assert {info.run_id for info in await thread.runs()} == set("abcd")


@pytest.mark.proves("W11")
async def test_one_run_of_a_thread_is_active_at_a_time_in_a_storm_of_starts(world: World) -> None:
    active, most = 0, 0

    async def answer(messages: Any, _tools: Any) -> str:
        nonlocal active, most
        active += 1
        most = max(most, active)
        for _ in range(5):
            await asyncio.sleep(0)
        active -= 1
        return f"to {messages[-1].text}"

    talker = agent(FunctionModel(answer), name="echo")
    rt, other = await world.open(talker), await world.open(talker)
    async with asyncio.TaskGroup() as group:
        starts = [
            group.create_task(where.start(talker, f"{n}", run_id=f"r{n}", thread_id="t"))
            for n in range(12)
            for where in ((rt, other)[n % 2],)
        ]
    for start in starts:
        await start.result().result()
    assert most == 1
    messages = await rt.thread("t").messages()
    check_transcript(messages)
    words = said(messages)
    assert words == conversation(*words[::2])
    assert sorted(words[::2]) == sorted(f"{n}" for n in range(12))


@pytest.mark.proves("W11", "J2", "R1")
async def test_the_queue_survives_a_crash_in_its_order(world: World) -> None:
    held = Stop()
    talker = echo(held)
    rt = await world.open(talker)
    for word in "abc":
        await rt.start(talker, word, run_id=word, thread_id="t")
    await held.reached()
    await world.kill(rt)
    held.let_go()
    second = await world.open(talker)
    assert await second.thread("t").queue() == ("b", "c")
    for word in "abc":
        await (await second.get(word)).result()
    assert said(await second.thread("t").messages()) == conversation(*"abc")


@pytest.mark.proves("W11", "J1")
async def test_a_crash_as_a_run_becomes_active_neither_loses_nor_doubles_it(world: World) -> None:
    held = Stop()
    talker = echo(held)
    rt = await world.open(talker)
    for word in "ab":
        await rt.start(talker, word, run_id=word, thread_id="t")
    await held.reached()
    activation = gate_of(rt).hold(lambda batch: bool(batch.heads))
    held.let_go()
    await activation.reached()
    await world.kill(rt)
    second = await world.open(talker)
    run = await second.get("b")
    await run.result()
    assert said(await second.thread("t").messages()) == conversation(*"ab")
    assert len(of(await check_run(run), e.BaseFixed)) == 1


@pytest.mark.proves("W11")
async def test_reject_names_what_is_at_work_and_stores_nothing(world: World) -> None:
    held = Stop()
    talker = echo(held)
    rt = await world.open(talker)
    first = await rt.start(talker, "a", run_id="a", thread_id="t", on_busy="reject")
    await held.reached()
    with pytest.raises(RunBusy, match=r"thread 't' is at work on run 'a'.*wait for it, or enqueue"):
        await rt.start(talker, "b", run_id="b", thread_id="t", on_busy="reject")
    with pytest.raises(NotFound, match="'b'"):
        await rt.get("b")
    assert await rt.thread("t").queue() == ()
    again = await rt.start(talker, "a", run_id="a", thread_id="t", on_busy="reject")  # the same start attaches
    held.let_go()
    assert (await again.result()).text == (await first.result()).text == "to a"
    second = await rt.start(talker, "b", run_id="b", thread_id="t", on_busy="reject")
    assert (await second.result()).text == "to b"
    assert said(await rt.thread("t").messages()) == conversation(*"ab")


@pytest.mark.proves("W11")
async def test_reject_counts_who_is_queued_as_busy_too(world: World) -> None:
    held = Stop()
    talker = echo(held)
    rt = await world.open(talker)
    await rt.start(talker, "a", run_id="a", thread_id="t")
    await rt.start(talker, "b", run_id="b", thread_id="t")
    with pytest.raises(RunBusy):
        await rt.start(talker, "c", thread_id="t", on_busy="reject")
    held.let_go()
    await (await rt.get("b")).result()


@pytest.mark.proves("W11", "C1")
@pytest.mark.parametrize("where", ["driving", "reading"])
async def test_a_queued_run_that_is_cancelled_is_nobodys_base(world: World, where: str) -> None:
    held = Stop()
    talker = echo(held)
    rt = await world.open(talker)
    for word in "abc":
        await rt.start(talker, word, run_id=word, thread_id="t")
    await held.reached()
    canceller = rt if where == "driving" else await world.open(drive=False)
    await canceller.cancel("b", reason="changed my mind")
    gone = await (await canceller.get("b")).result()
    assert gone.outcome == Cancelled(reason="changed my mind")
    assert await rt.thread("t").queue() == ("c",)
    held.let_go()
    last = await rt.get("c")
    await last.result()
    fixed = of(await check_run(last), e.BaseFixed)
    assert [x.run for x in fixed] == ["a"]
    assert said(await rt.thread("t").messages()) == conversation(*"ac")
    entries = await (await rt.get("b")).entries()
    assert of(entries, e.BaseFixed) == []
    assert entries[-1].kind == "run_finished"


@pytest.mark.proves("W11")
async def test_the_last_queued_run_cancelled_leaves_a_thread_that_goes_on(world: World) -> None:
    held = Stop()
    talker = echo(held)
    rt = await world.open(talker)
    for word in "ab":
        await rt.start(talker, word, run_id=word, thread_id="t")
    await rt.cancel("b")
    held.let_go()
    await (await rt.get("a")).result()
    third = await rt.start(talker, "c", run_id="c", thread_id="t")
    await third.result()
    assert said(await rt.thread("t").messages()) == conversation(*"ac")


@pytest.mark.proves("W11", "C2", "L4")
@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_the_next_goes_on_after_a_head_that_did_not_end_well(world: World, how: str) -> None:
    held = Stop()

    @tool(effect="once")
    async def pay() -> str:
        await held.arrive()
        return "paid"

    end = ModelError("unauthorized", "no key")
    first = agent([[call("pay")], end], pay, name="payer")
    talker = echo()
    rt = await world.open(first, talker)
    run = await rt.start(first, "a", run_id="a", thread_id="t")
    following = await rt.start(talker, "b", run_id="b", thread_id="t")
    await held.reached()
    if how == "cancelled":
        await run.cancel()
    held.let_go()
    outcome = (await run.result()).outcome
    assert outcome == (Cancelled() if how == "cancelled" else Failed("unauthorized", "no key"))
    result = await following.result()
    assert result.text == "to b"
    check_transcript(result.messages)


@pytest.mark.proves("W11", "R2")
async def test_a_queued_run_waits_for_a_process_that_has_its_agent(world: World) -> None:
    held = Stop()
    talker, other = echo(held), agent(["Other."], name="other")
    rt = await world.open(talker)
    starter = await world.open(drive=False)
    await rt.start(talker, "a", run_id="a", thread_id="t")
    await held.reached()
    await starter.start(other, "b", run_id="b", thread_id="t")
    held.let_go()
    await (await rt.get("a")).result()
    info = await becomes(rt, "b", lambda info: info.status == "running")
    assert info.seq == 1
    second = await world.open(other)
    assert said((await (await second.get("b")).result()).messages) == ["a", "to a", "b", "Other."]


@pytest.mark.proves("W11", "W10")
async def test_a_message_to_a_queued_run_is_taken_in_when_it_is_its_turn(world: World) -> None:
    held = Stop()
    talker = echo(held)
    rt = await world.open(talker)
    await rt.start(talker, "a", run_id="a", thread_id="t")
    second = await rt.start(talker, "b", run_id="b", thread_id="t")
    await second.send("and c")
    held.let_go()
    result = await second.result()
    assert said(result.messages) == ["a", "to a", "b", "and c", "to and c"]
    await check_run(second)


@pytest.mark.proves("W11")
async def test_threads_do_not_hold_each_other_up_and_are_listed(world: World) -> None:
    held = Stop()
    slow, quick = (
        agent(
            Fragments(
                [
                    held,
                ]
            ),
            name="slow",
        ),
        echo(),
    )
    rt = await world.open(slow, quick)
    stuck = await rt.start(slow, "a", thread_id="one")
    await held.reached()
    assert (await (await rt.start(quick, "b", thread_id="two")).result()).text == "to b"
    alone = await rt.start(quick, "c")
    await alone.result()
    assert alone.thread_id == alone.id
    assert {info.thread_id for info in [info async for info in rt.threads()]} == {"one", "two", alone.id}
    assert said(await rt.thread("two").messages()) == ["b", "to b"]
    with pytest.raises(NotFound, match=r"no thread 'three'.*start"):
        await rt.thread("three").messages()
    await stuck.cancel()


@pytest.mark.proves("W11", "J3")
async def test_the_same_start_on_a_thread_attaches_wherever_the_run_is_by_then(world: World) -> None:
    held = Stop()
    talker = echo(held)
    rt = await world.open(talker)
    for _ in range(2):
        await rt.start(talker, "a", run_id="a", thread_id="t")
    await held.reached()
    for _ in range(2):
        await rt.start(talker, "b", run_id="b", thread_id="t")
    assert await rt.thread("t").queue() == ("b",)
    held.let_go()
    await (await rt.get("b")).result()
    for word in "ab":
        again = await rt.start(talker, word, run_id=word, thread_id="t")
        assert (await again.result()).text == f"to {word}"
    with pytest.raises(Conflict, match="'b' exists"):
        await rt.start(talker, "c", run_id="b", thread_id="t")
    assert said(await rt.thread("t").messages()) == conversation(*"ab")


@pytest.mark.proves("W11")
async def test_what_comes_later_says_so(world: World) -> None:
    rt = await world.open()
    for on_busy in ("interrupt", "steer", "whatever"):
        with pytest.raises(UsageError, match=f"on_busy='{on_busy}'.*use 'enqueue' or 'reject'"):
            await rt.start(echo(), "a", thread_id="t", on_busy=on_busy)
