from __future__ import annotations

import asyncio

from portal.telemetry import send_queue
from portal.telemetry.send_queue import Mailbox


async def test_a_slow_reader_gets_every_event_and_only_the_newest_frame() -> None:
    box = Mailbox()

    for i in range(1000):
        box.put_frame("fleet", f"frame {i}")
    box.put("event 1")
    box.put("event 2")

    assert box.waiting() == 3
    assert [await box.take() for _ in range(3)] == ["event 1", "event 2", "frame 999"]
    assert box.dropped == 999


async def test_too_many_events_end_the_box_instead_of_filling_memory(monkeypatch) -> None:
    monkeypatch.setattr(send_queue, "MOST_TEXTS", 5)
    box = Mailbox()

    for i in range(6):
        box.put(f"event {i}")

    assert box.waiting() == 0
    assert await box.take() is None


async def test_a_reader_that_waits_is_woken() -> None:
    box = Mailbox()
    waiting = asyncio.create_task(box.take())
    await asyncio.sleep(0)

    box.put_frame("me", "news")

    assert await asyncio.wait_for(waiting, 1) == "news"
