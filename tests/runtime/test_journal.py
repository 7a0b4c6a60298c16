"""J: what is written, when, and what becomes of it when the store says no."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from clew import ClientTool, Limits, Message, ModelSettings, ToolOutput, tool
from clew.codec import encode
from clew.core import entries as e
from clew.core.letters import MessageLetter
from clew.core.outcomes import Completed, Failed, Requested, Stopped, detail_of, parse_outcome
from clew.errors import (
    Conflict,
    Fatal,
    ModelError,
    NotFound,
    RunEnded,
    StoreUnavailable,
    Unsupported,
)
from clew.messages import Text
from clew.ports import ModelReply
from clew.runtime import draft
from clew.testing import FunctionModel, ScriptedModel, call
from tests.runtime.world import World, agent, check_run, gate_of, has, kinds, of, seen

UNAVAILABLE = StoreUnavailable("the disk is full")


@tool(effect="read")
def look(at: str = "sky") -> str:
    return f"{at}: blue"


# --- J1 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("J1")
async def test_an_end_is_taken_back_for_a_message_that_came_before_it(world: World) -> None:
    model = ScriptedModel(["Done.", "Also done."])
    rt = await world.open(agent(model))
    end = gate_of(rt).hold(has("run_finished"))
    run = await rt.start(agent(model), "One thing.", run_id="r")
    await end.reached()
    await (await world.opened_store()).post("r", MessageLetter(messages=(Message.user("And another."),)))
    end.let_go()
    result = await run.result()
    assert (result.text, model.count) == ("Also done.", 2)
    entries = await check_run(run)
    assert kinds(entries)[2:] == ["model_replied", "messages_received", "model_replied", "run_finished"]
    assert [m.text for m in result.messages] == ["One thing.", "Done.", "And another.", "Also done."]


@pytest.mark.proves("J1")
async def test_a_message_to_a_finished_run_is_refused_and_not_kept(world: World) -> None:
    meteo = agent(["Done."])
    rt = await world.open(meteo)
    run = await rt.start(meteo, "Hi", run_id="r")
    await run.result()
    with pytest.raises(RunEnded, match="'r' is finished"):
        await run.send("More")
    assert await rt.store.inbox("r") == []


@pytest.mark.proves("J1", "W10")
async def test_letters_become_entries_in_the_batch_that_takes_them(world: World) -> None:
    meteo = agent(["One.", "Two."])
    rt = await world.open(meteo)
    gate = gate_of(rt)
    reply = gate.hold(has("model_replied"))
    run = await rt.start(meteo, "Hi", run_id="r")
    await reply.reached()
    for text in "abc":
        await run.send(text)
    reply.let_go()
    await run.result()
    batches = [batch for batch in gate.batches if batch.taken]
    assert [batch.taken for batch in batches][-1] == (1, 2, 3)
    assert [entry.inbox for entry in of(batches[-1].entries, e.MessagesReceived)] == [(1,), (2,), (3,)]
    assert await rt.store.inbox("r") == []


# --- J2, J3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("J2")
async def test_a_started_run_is_durable_before_start_returns_and_any_worker_takes_it(world: World) -> None:
    starter = await world.open(drive=False)
    meteo = agent(["Sunny."])
    run = await starter.start(meteo, "Rain?", run_id="r", metadata={"user": "ann"})
    written = await (await world.opened_store()).read("r")
    assert kinds(written) == ["run_started"]
    assert (written[0].input[0].text, written[0].metadata) == ("Rain?", {"user": "ann"})
    await world.kill(starter, lapse=False)
    worker = await world.open(meteo)
    assert (await (await worker.get("r")).result()).text == "Sunny."
    assert run.id == "r"


@pytest.mark.proves("J2")
async def test_a_start_that_the_store_refuses_is_no_run(world: World) -> None:
    rt = await world.open()
    gate = gate_of(rt)

    async def refuse(_new: Any) -> Any:
        raise UNAVAILABLE

    accept, gate.start = gate.start, refuse  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await rt.start(agent(["Hi."]), "Hi", run_id="r")
    with pytest.raises(NotFound, match="'r'"):
        await rt.get("r")
    gate.start = accept  # type: ignore[method-assign]
    assert (await (await rt.start(agent(["Hi."]), "Hi", run_id="r")).result()).ok


@pytest.mark.proves("J3")
async def test_the_same_start_attaches(world: World) -> None:
    model = ScriptedModel(["Sunny."])
    meteo = agent(model)
    rt = await world.open(meteo)
    async with asyncio.TaskGroup() as group:
        starts = [group.create_task(rt.start(meteo, "Rain?", run_id="r")) for _ in range(10)]
    assert {(await start.result().result()).text for start in starts} == {"Sunny."}
    assert model.count == 1
    assert len(await starts[0].result().entries()) == 4


@pytest.mark.proves("J3")
async def test_a_finished_run_answers_with_its_real_usage_and_cost_and_calls_nothing(world: World) -> None:
    from clew.messages import Usage

    reply = ModelReply(parts=(Text("Sunny."),), usage=Usage(input=11, output=3), cost=Decimal("0.25"))
    first = await world.open()
    paid = await (await first.start(agent([reply]), "Rain?", run_id="r", thread_id="t")).result()
    await first.close()
    silent = ScriptedModel([])
    second = await world.open()
    again = await (await second.start(agent(silent), "Rain?", run_id="r", thread_id="t")).result()
    assert (again.output, again.usage, again.cost) == ("Sunny.", paid.usage, Decimal("0.25"))
    assert again.usage.input == 11
    assert silent.count == 0


@pytest.mark.proves("J3")
async def test_a_deploy_and_other_metadata_do_not_make_it_another_start(world: World) -> None:
    rt = await world.open()
    await (await rt.start(agent(["Sunny."]), "Rain?", run_id="r", metadata={"a": 1})).result()
    await rt.close()
    newer = agent(["Other."], look, instructions="Be brief.", limits=Limits(turns=3))
    second = await world.open()
    run = await second.start(newer, "Rain?", run_id="r", metadata={"a": 2})
    assert (await run.result()).text == "Sunny."


@pytest.mark.proves("J3")
@pytest.mark.parametrize(
    ("other", "given"),
    [
        ({}, {"input": "Snow?"}),
        ({}, {"input": [Message.system("Rain?")]}),
        ({"name": "pilot"}, {}),
        ({}, {"thread_id": "another"}),
        ({}, {"limits": Limits(turns=9)}),
        ({}, {"model_settings": ModelSettings(temperature=0.5)}),
        ({}, {"client_tools": [ClientTool("pick", {"type": "object"})]}),
        ({}, {"model": "openai:gpt-5-mini"}),
    ],
    ids=["input", "role", "agent", "thread", "limits", "settings", "client_tools", "model"],
)
async def test_another_start_under_the_same_id_is_a_conflict_that_names_both(
    world: World, other: dict[str, Any], given: dict[str, Any]
) -> None:
    rt = await world.open(drive=False)
    await rt.start(agent([]), "Rain?", run_id="r", thread_id="t")
    stored = of(await rt.store.read("r"), e.RunStarted)[0].start_digest
    with pytest.raises(Conflict, match=f"'r' exists.*{stored}.*sha256:.*another run id") as refused:
        await rt.start(agent([], **other), **{"input": "Rain?", "run_id": "r", "thread_id": "t", **given})
    assert str(refused.value).count("sha256:") == 2
    assert len(await rt.store.read("r")) == 1


# --- J4 ---------------------------------------------------------------------------------------------------------------


def chatter(turns: int) -> ScriptedModel:
    return ScriptedModel([*([call("look", {"at": "sky"})] for _ in range(turns)), "Done."])


@pytest.mark.proves("J4")
async def test_a_step_writes_and_folds_what_is_new_however_long_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded: list[int] = []
    whole = draft.apply
    monkeypatch.setattr(draft, "apply", lambda state, entry: folded.append(entry.seq) or whole(state, entry))
    turns = 120
    rt = await world.open()
    run = await rt.start(agent(chatter(turns), look, limits=Limits(turns=None)), "Go", run_id="r")
    await run.result()
    batches = gate_of(rt).batches
    sizes = [sum(len(encode(entry)) for entry in batch.entries) for batch in batches]
    replies = [size for size, batch in zip(sizes, batches, strict=True) if has("model_replied")(batch)]
    assert max(replies[60:turns]) <= max(replies[:10]) + 16  # a digit more in a number, no more
    assert max(sizes) < 1024
    assert len(folded) <= 6 * turns


@pytest.mark.proves("J4", "B5")
async def test_opening_a_run_reads_each_journal_once(world: World) -> None:
    starter = await world.open(drive=False)
    meteo = agent(chatter(20), look)
    await starter.start(meteo, "Go", run_id="r")
    rt = await world.open(meteo)
    await (await rt.get("r")).result()
    assert gate_of(rt).calls["read"] == 1


# --- J5 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("J5")
async def test_every_entry_has_its_envelope(world: World) -> None:
    rt = await world.open()
    run = await rt.start(agent([[call("look"), call("look")], "Done."], look), "Go", run_id="r")
    await run.result()
    entries = await check_run(run)
    first = 1
    for before, entry in zip([entries[0], *entries], entries, strict=False):
        first = entry.seq if entry.batch != before.batch else first
        assert entry.batch == first
        assert (entry.v, entry.epoch) == (1, 1)
        assert entry.at >= world.clock.now()
    assert [(x.kind, x.step, x.attempt) for x in entries if x.step] == [
        ("model_replied", "1.model", 1),
        ("tool_returned", "1.tool.1", 1),
        ("tool_returned", "1.tool.2", 1),
        ("model_replied", "2.model", 1),
    ]


@pytest.mark.proves("J5", "R3")
async def test_a_journal_from_a_newer_version_is_given_back_uncounted_and_the_others_go_on(world: World) -> None:
    starter = await world.open(drive=False)
    meteo = agent(["Sunny."])
    await starter.start(meteo, "Rain?", run_id="newer")
    await starter.start(meteo, "Rain?", run_id="known")
    rt = world.runtime(meteo)
    gate = gate_of(rt)
    read = gate.inner.read

    async def newer(run: str, *args: Any, **given: Any) -> Any:
        if run == "newer":
            raise Unsupported("an entry of kind 'dream' was written by a newer Clew: upgrade Clew to read the run")
        return await read(run, *args, **given)

    gate.read = newer  # type: ignore[attr-defined]
    await rt.open()
    assert (await (await rt.get("known")).result()).ok
    await rt.close()
    place = await world.opened_store()
    info, lease = await place.info("newer"), await place.lease("newer")
    assert (info.status, info.quarantined) == ("running", False)
    assert (lease.unclean, lease.owner) == (0, None)


# --- J8, J9 -----------------------------------------------------------------------------------------------------------


@tool(effect="read")
def last() -> ToolOutput:
    return ToolOutput("that was all", end=True)


@tool(effect="read")
def fatal() -> str:
    raise Fatal("the bank is closed")


@pytest.mark.proves("J8", "L9")
@pytest.mark.parametrize(
    ("script", "outcome", "text"),
    [
        (["Sunny."], Completed(), "natural"),
        ([[call("last")]], Requested(), "behavior_requested"),
        ([[call("look")], [call("look")]], Stopped("turns", "2 of 2"), "stopped:turns"),
        ([[call("fatal")]], Failed("fatal", "the bank is closed"), "error"),
        ([ModelError("unauthorized", "no key")], Failed("unauthorized", "no key"), "error"),
    ],
    ids=["completed", "requested", "stopped", "fatal", "model"],
)
async def test_a_run_ends_once_and_its_outcome_round_trips(
    world: World, script: list[Any], outcome: Any, text: str
) -> None:
    rt = await world.open()
    run = await rt.start(agent(script, look, last, fatal, limits=Limits(turns=2)), "Go", run_id="r")
    result = await run.result()
    assert (result.status, result.outcome, result.reason) == ("done", outcome, text)
    assert result.ok is isinstance(outcome, Completed | Requested)
    assert parse_outcome(result.reason, detail_of(outcome)) == outcome
    entries = await check_run(run)
    assert (await run.info()).outcome == entries[-1].outcome == outcome


@pytest.mark.proves("J8")
async def test_a_final_reply_and_the_end_share_a_commit(world: World) -> None:
    rt = await world.open()
    run = await rt.start(agent(["Sunny."]), "Rain?", run_id="r")
    await run.result()
    reply, end = (await run.entries())[-2:]
    assert (reply.kind, end.kind, reply.batch) == ("model_replied", "run_finished", end.batch)


@pytest.mark.proves("J9")
async def test_message_ids_are_fixed_and_a_run_knows_what_triggered_it_and_what_it_produced(world: World) -> None:
    meteo = agent([[call("look"), call("look")], "One.", "Two."], look)
    rt = await world.open(meteo)
    end = gate_of(rt).hold(has("run_finished"))
    run = await rt.start(meteo, ["Rain?", Message.assistant("Where?"), Message.user("Oslo")], run_id="a:b")
    await end.reached()
    await (await world.opened_store()).post("a:b", MessageLetter(messages=(Message.user("More"),)))
    end.let_go()
    before = (await run.result()).messages
    seqs = [entry.seq for entry in of(await run.entries(), e.ModelReplied)]
    tools = [entry.seq for entry in of(await run.entries(), e.ToolReturned)]
    mail = of(await run.entries(), e.MessagesReceived)[0].seq
    expected = ["a:b:1.1", "a:b:1.2", "a:b:1.3", *(f"a:b:{n}" for n in (seqs[0], *tools, seqs[1], mail, seqs[2]))]
    assert [message.id for message in before] == expected
    made = {message.id: message.produced_by for message in before}
    assert made[f"a:b:{seqs[0]}"] == made[f"a:b:{tools[1]}"] == ("a:b", 1)
    assert (made[f"a:b:{seqs[2]}"], made["a:b:1.1"]) == (("a:b", 3), None)
    state = await rt.state_of("a:b")
    assert list(state.triggered) == ["a:b:1.1", "a:b:1.2", "a:b:1.3", f"a:b:{mail}"]
    assert state.produced == [f"a:b:{n}" for n in (seqs[0], *tools, seqs[1], seqs[2])]
    await rt.close()
    again = await (await world.open()).get("a:b")
    assert await again.messages() == list(before)


@pytest.mark.proves("J2", "J9")
async def test_a_run_id_is_made_when_none_is_given(world: World) -> None:
    rt = await world.open()
    one, other = [await rt.start(agent(["Hi."]), "Hi") for _ in range(2)]
    assert one.id.startswith("run_")
    assert one.id != other.id
    assert (await seen(one, "run_finished"))[0].kind == "run_started"


@pytest.mark.proves("J2")
async def test_what_a_function_model_is_shown_is_the_conversation(world: World) -> None:
    shown: list[list[str]] = []
    model = FunctionModel(lambda messages, _tools: shown.append([m.role for m in messages]) or "Hi.")
    rt = await world.open()
    await (await rt.start(agent(model), "Hi")).result()
    assert shown == [["user"]]
