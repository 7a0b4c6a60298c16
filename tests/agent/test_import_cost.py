"""What `from clew import …` loads: the time is measured in bench/, what causes it is held here."""

import json
import subprocess
import sys

FIRST_AGENT = '''
import json, sys
from clew import Agent, Runtime, tool

@tool(effect="read")
def weather(city: str, days: int = 3) -> str:
    """What the weather is in a town.

    Args:
        city: The town.
        days: How many.
    """
    return "Sunny"

agent = Agent("meteo", model="openai:gpt-5-mini", instructions="Be brief.", tools=[weather])
print(json.dumps(sorted(sys.modules)))
'''


def modules_after(code: str) -> set[str]:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout))


def test_a_first_agent_loads_nothing_it_does_not_need() -> None:
    loaded = modules_after(FIRST_AGENT)
    heavy = {"pydantic", "pydantic_core", "griffe", "rich", "click", "sqlite3", "openai", "pytest", "hypothesis"}
    assert not heavy & loaded
    assert not {name for name in loaded if name.startswith(("clew.testing", "clew.cli", "clew.models", "clew.policy"))}


def test_the_package_alone_loads_nothing_of_its_own() -> None:
    loaded = modules_after("import json, sys, clew; print(json.dumps(sorted(sys.modules)))")
    assert {name for name in loaded if name.startswith(("clew.", "msgspec", "asyncio"))} == set()


def test_an_agent_without_a_runtime_needs_no_event_loop() -> None:
    loaded = modules_after("import json, sys; from clew import Agent, tool; print(json.dumps(sorted(sys.modules)))")
    assert "asyncio" not in loaded
    assert "clew.app" not in loaded


def test_the_schema_is_what_loads_pydantic() -> None:
    loaded = modules_after(FIRST_AGENT.replace("print(", "agent.spec\nprint("))
    assert {"pydantic", "griffe"} <= loaded
