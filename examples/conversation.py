"""A conversation: each question is a run of its own, and `thread_id` makes it go on from the one before.

Run it again: the conversation goes on where it was, because it is kept in a file.
"""

import asyncio
import tempfile
from pathlib import Path

from clew import Agent, Message, Runtime
from clew.testing import FunctionModel

STORE = f"sqlite:///{Path(tempfile.gettempdir()) / 'clew-conversation.db'}"


def answer(messages: list[Message], _tools: object) -> str:
    """A model that knows nothing but the conversation it is shown, as any model does."""
    questions = [message.text for message in messages if message.role == "user"]
    return f"That was question {len(questions)}. The first was {questions[0]!r}."


agent = Agent("listener", model=FunctionModel(answer))


async def main() -> None:
    async with Runtime(STORE, agents=[agent]) as rt:
        for question in ("Are you there?", "What did I ask first?"):
            run = await rt.start(agent, question, thread_id="anna")
            result = await run.result()
            print(f"> {question}\n{result.output}")
        thread = rt.thread("anna")
        print(f"{len(await thread.runs())} runs, {len(await thread.messages())} messages")


if __name__ == "__main__":
    asyncio.run(main())
