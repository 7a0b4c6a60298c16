"""No framework, no durability: messages in a list. The floor of what a loop costs."""

from pathlib import Path

from bench.workload import SYSTEM, TOOL, Spec, decide, lookup

VARIANTS = ("loop",)


class Peer:
    def __init__(self, variant: str, folder: Path) -> None:
        pass

    async def setup(self) -> None:
        pass

    async def run(self, run: str, spec: Spec) -> int:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": spec.prompt()}]
        last = None
        while (decided := decide(spec.prompt(), last, len(messages))) is not None:
            text, calls = decided
            asked = [{"id": call, "name": TOOL, "arguments": args} for call, args in calls]
            messages.append({"role": "assistant", "content": text, "tool_calls": asked})
            for last, args in calls:
                found = lookup(args["page"], args["limit"])
                messages.append({"role": "tool", "tool_call_id": last, "content": found})
        return len(messages) + 1

    async def close(self) -> None:
        pass
