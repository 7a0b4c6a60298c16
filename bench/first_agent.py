"""What every program pays before its first run: the imports, one tool and one agent, in a fresh process."""

import json
import sys
import time

from bench import meters

STRANGERS = ("rich", "click", "openai", "anthropic", "google.genai", "httpx", "starlette", "sqlite3")

begun = time.perf_counter()

from clew import Agent, Runtime, tool  # noqa: E402


@tool(effect="read")
def weather(city: str) -> str:
    """What the weather is in a town.

    Args:
        city: Its name.
    """
    return f"Sunny in {city}"


agent = Agent("meteo", model="openai:gpt-5-mini", instructions="Be brief.", tools=[weather])
built = time.perf_counter() - begun
assert agent.fingerprint  # schemas and all: what the first run would derive
derived = time.perf_counter() - begun

if __name__ == "__main__":
    assert Runtime.__name__ == "Runtime"
    strangers = [name for name in STRANGERS if name in sys.modules]
    found = {"ms": built * 1e3, "derived_ms": derived * 1e3, "memory_mib": meters.memory_mib(), "strangers": strangers}
    print(json.dumps(found))
