"""A first agent: one tool, a scripted model, a run in memory. `python examples/first_agent.py`, or

clew run examples/first_agent.py:agent "Rain in Oslo?"
"""

from clew import Agent, tool
from clew.testing import ScriptedModel, call


@tool(effect="read")
def weather(city: str) -> str:
    """What the weather is in a town."""
    return f"Sunny in {city}"


# A script stands in for a model: it needs no key and no network, and says the same in every process.
model = ScriptedModel([call("weather", {"city": "Oslo"}), "Sunny. Leave the umbrella."])
agent = Agent("meteo", model=model, instructions="Be brief.", tools=[weather])


if __name__ == "__main__":
    result = agent.run_sync("Rain in Oslo?")
    print(result.output)
    print(f"{result.turns} turns, {result.usage.total} tokens")
