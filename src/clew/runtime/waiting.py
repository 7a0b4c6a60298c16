"""Waiting for something to happen, for no longer than a while."""

import asyncio


async def happened(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event came within the time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return event.is_set()
