"""Bad input gets a clear error, which names the thing and the remedy, and loses nothing."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from clew import Message, ModelSettings, Runtime, tool
from clew.errors import NotFound, RunBusy, StoreUnavailable, UsageError
from clew.messages import Data, Text, ToolResult
from clew.testing import call
from tests.runtime.world import Stop, World, agent, check_run

MIB = 1024 * 1024
NAUGHTY_IDS = [
    "../../etc/passwd",
    "a/b",
    "r" * 10_000,
    "",
    " ",
    "a\nb",
    "a\x00b",
    "é",
    "a\ud800",
    "r" * 129,
    7,
    b"r",
    None,
]


async def rows(rt: Runtime) -> list[Any]:
    return [info async for info in rt.runs()]


@tool(effect="read")
def look() -> str:
    return "blue"


# --- what a run is started with ---------------------------------------------------------------------------------------


@pytest.mark.proves("J2", "T8")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (42, "the input is a int: give text, parts or messages"),
        (None, "the input is a NoneType: give text, parts or messages"),
        (b"Hi", "the input is a bytes: give text, parts or messages"),
        ({"role": "user"}, "the input is a dict: give text, parts or messages"),
        (iter(["Hi"]), "give text, parts or messages"),
        ([], "the input is empty: give the run something to start from"),
        ([1], "made of text and parts, not of int"),
        ([{"role": "user", "content": "Hi"}], "made of text and parts, not of dict"),
        ([Message.user("Hi"), object()], "made of text and parts, not of object"),
        ("a\ud800b", "lone surrogate at position 1"),
        ([Message("user", (Text("a\ud800"),))], "lone surrogate"),
        ([Message("user", (7,))], "text and parts, not of int"),  # type: ignore[arg-type]
        ([Message("user", "Hi")], "say Message.user"),  # type: ignore[arg-type]
        ([Message("wizard", (Text("Hi"),))], "the role 'wizard': use system, user, assistant, tool"),  # type: ignore[arg-type]
        ([Message.user(Data("chart", object()))], "cannot be stored as JSON"),
        ([Message.user(Data("chart", {"a": "\ud800"}))], "lone surrogate"),
        ([Message.assistant(call("look", id="a")), Message.user("So?")], "give each call its result"),
        ([Message.assistant(call("look", id="a"))], "calls without results, ['a']"),
        ([Message("tool", (ToolResult("a", "x"),))], "the results ['a'] where those of the calls [] belong"),
    ],
    ids=lambda given: type(given).__name__ if not isinstance(given, str) else None,
)
async def test_input_that_is_no_input(world: World, given: Any, told: str) -> None:
    rt = await world.open()
    with pytest.raises(UsageError) as refused:
        await rt.start(agent(["Hi."]), given, run_id="r")
    assert told in str(refused.value)
    assert await rows(rt) == []


@pytest.mark.proves("J6")
async def test_an_input_above_sixteen_mebibytes(world: World) -> None:
    rt = await world.open()
    for given in ("x" * (16 * MIB + 1), [Message.user("x" * 9 * MIB), Message.user("x" * 9 * MIB)]):
        with pytest.raises(UsageError, match=r"the input has \d+ bytes, 16777216 is the most: put it in a file"):
            await rt.start(agent(["Hi."]), given)
    assert await rows(rt) == []


@pytest.mark.proves("Z2")
@pytest.mark.parametrize("run_id", NAUGHTY_IDS[:-1], ids=range(len(NAUGHTY_IDS) - 1))
async def test_run_ids_that_are_none(world: World, run_id: Any) -> None:
    rt = await world.open()
    with pytest.raises(
        UsageError, match=r"cannot be a run id: use 1 to 128 of the characters A-Z a-z 0-9 _ \. : -"
    ) as no:
        await rt.start(agent(["Hi."]), "Hi", run_id=run_id)
    assert len(str(no.value)) < 300
    assert await rows(rt) == []


@pytest.mark.proves("Z2")
@pytest.mark.parametrize("run_id", NAUGHTY_IDS[:5], ids=range(5))
async def test_asking_for_a_run_by_a_naughty_id_says_that_there_is_none(world: World, run_id: str) -> None:
    rt = await world.open()
    for verb in (rt.get, rt.cancel, rt.drive, rt.pause):
        with pytest.raises((NotFound, UsageError)) as no:
            await verb(run_id)
        assert len(str(no.value)) < 500
    with pytest.raises((NotFound, UsageError)):
        await rt.send(run_id, "Hi")


@pytest.mark.proves("W11", "Z2")
@pytest.mark.parametrize("thread_id", ["", " ", "a\nb", "t" * 257, "a\ud800", 7], ids=range(6))
async def test_thread_ids_that_are_none(world: World, thread_id: Any) -> None:
    rt = await world.open()
    with pytest.raises(UsageError, match=r"a thread id is 1 to 256 printable characters|surrogate"):
        await rt.start(agent(["Hi."]), "Hi", thread_id=thread_id)
    assert await rows(rt) == []


@pytest.mark.proves("T8", "J2")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"metadata": {"a": object()}}, "object cannot be stored as JSON"),
        ({"metadata": {"a": "\ud800"}}, "lone surrogate"),
        ({"metadata": {1: "a"}}, "key 1"),
        ({"metadata": 42}, "metadata"),
        ({"metadata": ["a"]}, "metadata"),
        ({"trace": {"nonsense": "x"}}, "trace"),
        ({"limits": {"turns": 3}}, "limits"),
        ({"model_settings": {"temperature": 1}}, "model_settings"),
        ({"model_settings": ModelSettings(extra={"a": object()})}, "object cannot be stored"),
        ({"client_tools": [{"name": "pick"}]}, "client_tools"),
        ({"model": 42}, "provider:name"),
    ],
    ids=range(11),
)
async def test_wishes_that_cannot_be_kept(world: World, given: dict[str, Any], told: str) -> None:
    rt = await world.open()
    with pytest.raises(UsageError) as refused:
        await rt.start(agent(["Hi."]), "Hi", **given)
    assert told in str(refused.value)
    assert await rows(rt) == []


@pytest.mark.proves("J2")
@pytest.mark.parametrize("what", [None, "meteo", object(), look], ids=["none", "name", "object", "tool"])
async def test_what_is_no_agent(world: World, what: Any) -> None:
    rt = await world.open()
    with pytest.raises(UsageError, match=r"is not an Agent: define one with Agent\(name, model=…\)"):
        await rt.start(what, "Hi")
    with pytest.raises(UsageError, match="is not an Agent"):
        world.runtime(what)
    with pytest.raises(UsageError, match=r"two different agents are called 'meteo'.*another name"):
        world.runtime(agent(["Hi."]), agent(["Hi."], look))


# --- the runtime ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("J2")
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://localhost", "no store is called 'redis': use memory://, sqlite:///path"),
        ("clew.db", "'clew.db' is no store URL: use memory://, sqlite:///path"),
        ("", "is no store URL"),
        ("sqlite://", "names no file: use sqlite:///clew.db"),
        ("sqlite:///", "names no file"),
        ("postgresql://localhost/x", "comes with a later release of Clew: use sqlite:///path"),
        (42, "42 is no store: use memory://"),
    ],
    ids=["unknown", "a path", "empty", "no file", "no path", "later", "a number"],
)
def test_store_urls_that_name_none(url: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEW_STORE", raising=False)
    with pytest.raises(UsageError) as refused:
        Runtime(url)
    assert told in str(refused.value)


@pytest.mark.proves("J7")
def test_options_that_cannot_work() -> None:
    for given, told in (
        ({"concurrency": 0}, "one run at a time is the least"),
        ({"lease": -1}, "lease"),
        ({"lease": float("nan")}, "lease"),
        ({"grace": "long"}, "grace"),
        ({"engine": object()}, "engine= comes with a later release"),
    ):
        with pytest.raises(UsageError, match=told):
            Runtime("memory://", **given)


@pytest.mark.proves("J2")
async def test_a_runtime_is_used_while_it_is_open(world: World) -> None:
    meteo = agent(["Hi."])
    rt = world.runtime(meteo)
    for said, remedy in (("is not open", "async with"), ("is closed", "make a new one")):
        verbs: list[Any] = [
            lambda: rt.start(meteo, "Hi"),
            lambda: rt.get("r"),
            lambda: rt.cancel("r"),
            lambda: rt.send("r", "Hi"),
            lambda: rt.drive("r"),
            lambda: rows(rt),
            lambda: anext(rt.watch()),
            lambda: rt.thread("t").messages(),
            lambda: rt.state_of("r"),
        ]
        for verb in verbs:
            with pytest.raises(UsageError, match=f"{said}.*{remedy}"):
                await verb()
        if said == "is not open":
            await rt.open()
            await rt.open()  # once more is nothing
            run = await rt.start(meteo, "Hi", run_id="r")
            await run.result()
            await rt.close()
            await rt.close()
    with pytest.raises(UsageError, match="was closed: make a new one"):
        await rt.open()
    with pytest.raises(UsageError, match="is closed"):
        await run.result()


@pytest.mark.proves("J2", "R1")
async def test_two_runtimes_of_one_process_on_one_file(kind: str, tmp_path: Path) -> None:
    if kind == "memory":
        return  # memory:// is a new place each time
    held, ran = Stop(), []

    @tool(effect="once")
    async def work() -> str:
        ran.append("work")
        await held.arrive()
        return "worked"

    worker = agent([[call("work")], "Done."], work)
    url = f"sqlite:///{tmp_path}/clew.db"
    async with Runtime(url, agents=[worker]) as one, Runtime(url, agents=[worker]) as two:
        run = await one.start(worker, "Go", run_id="r")
        await held.reached()
        with pytest.raises(RunBusy):
            await two.drive("r")
        watched = [item async for item in (await two.get("r")).watch(until="settled")] if held.passed > 1 else []
        held.let_go()
        assert (await (await two.get("r")).result()).text == (await run.result()).text == "Done."
        await check_run(run)
    assert ran == ["work"]
    assert watched == []


@pytest.mark.proves("R1")
def test_a_forked_process_is_told_that_it_cannot_use_what_its_parent_has_open(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import asyncio, os, sys
        from clew import Agent, Runtime
        from clew.errors import UsageError
        from clew.testing import ScriptedModel

        agent = Agent("meteo", model=ScriptedModel(["Sunny."]))
        url = "sqlite:///{tmp_path}/clew.db"

        def child(rt):
            async def ask():
                try:
                    await rt.start(agent, "Rain?")
                except UsageError as error:
                    print("child:", error, flush=True)
                try:
                    await Runtime(url, agents=[agent]).open()
                except UsageError as error:
                    print("child:", error, flush=True)
                async with Runtime(url.replace("clew.db", "own.db"), agents=[agent]) as own:
                    result = await (await own.start(agent, "Rain?", run_id="of-the-child")).result()
                    print("child:", result.text, flush=True)
            asyncio.run(ask())
            os._exit(0)

        async def main():
            async with Runtime(url, agents=[agent]) as rt:
                await (await rt.start(agent, "Rain?", run_id="before")).result()
                pid = os.fork()
                if pid == 0:
                    asyncio._set_running_loop(None)
                    child(rt)
                assert os.waitpid(pid, 0)[1] == 0
                result = await (await rt.start(agent, "Rain?", run_id="after")).result()
                print("parent:", result.text, flush=True)

        asyncio.run(main())
        """
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert "made before a fork(): start processes by spawn, or fork before opening one" in said[0]
    assert "was open in the process that forked this one" in said[1]
    assert said[2:] == ["child: Sunny.", "parent: Sunny."]


@pytest.mark.proves("J7")
async def test_a_file_that_is_no_database(kind: str, tmp_path: Path) -> None:
    if kind == "memory":
        return
    path = tmp_path / "clew.db"
    path.write_bytes(b"this is a diary, not a database" * 100)
    with pytest.raises(Exception, match=r"clew\.db") as refused:
        await Runtime(f"sqlite:///{path}").open()
    assert type(refused.value).__module__ == "clew.errors"
    assert path.read_bytes().startswith(b"this is a diary")
    with pytest.raises((StoreUnavailable, UsageError), match="nowhere"):
        await Runtime(f"sqlite:///{tmp_path}/nowhere/clew.db").open()
