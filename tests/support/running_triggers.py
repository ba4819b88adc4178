"""Triggers that run in an event loop like the triggerer's, what they poll, and their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.lag.shared_poll import PollResult

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

POLL = timedelta(seconds=0.1)
SECONDS = 60.0

Looked = list[PollResult | Exception]


def arguments(topic: str, **more: Any) -> dict[str, Any]:
    defaults = {"group_id": "loader", "topics": [topic], "conn_id": "warehouse", "poll_interval": POLL}
    return defaults | more


def stored_again(trigger: Any) -> Any:
    """As the triggerer makes it from what is in Airflow's database."""
    from airflow.models.trigger import Trigger  # noqa: TID251

    _, kwargs = trigger.serialize()
    return type(trigger)(**Trigger._decrypt_kwargs(Trigger.encrypt_kwargs(kwargs)))


class Running:
    """A trigger as a task, and its events."""

    def __init__(self, trigger: BaseTrigger) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self._trigger = trigger
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for event in self._trigger.run():
            self.events.put_nowait(event.payload)

    async def event(self) -> Any:
        return await asyncio.wait_for(self.events.get(), SECONDS)


@asynccontextmanager
async def running(*triggers: BaseTrigger) -> AsyncIterator[list[Running]]:
    tasks = [Running(stored_again(trigger)) for trigger in triggers]
    try:
        yield tasks
    finally:
        for one in tasks:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in tasks), return_exceptions=True)


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


async def more_looks(looked: Looked, count: int = 3) -> Looked:
    """The next looks, which begin after this moment."""
    seen = len(looked)
    await until(lambda: len(looked) >= seen + count + 1, "looks")
    return looked[seen + 1 :]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 5 * SECONDS))
