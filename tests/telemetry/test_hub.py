from __future__ import annotations

import asyncio

import pytest

from portal.common import live as news
from portal.common.live import EVENTS, FRAMES, Hub, publish, redis_client, wire_name


@pytest.fixture
async def hub(valkey_url: str):
    listening = Hub()
    yield listening
    await listening.close()


async def hear(hub: Hub, channel: str) -> asyncio.Queue[object]:
    heard: asyncio.Queue[object] = asyncio.Queue()
    hub.listen(channel, lambda _channel, message: heard.put_nowait(message))
    await asyncio.wait_for(hub.opened(), 5)
    return heard


async def test_one_message_of_many_reaches_each_listener_of_its_channel_only(hub: Hub) -> None:
    events, frames = await hear(hub, EVENTS), await hear(hub, FRAMES)

    await asyncio.to_thread(publish, EVENTS, ["a", "b"])

    assert [await asyncio.wait_for(events.get(), 5) for _ in range(2)] == ["a", "b"]
    assert frames.empty()


async def test_a_listener_that_fails_does_not_stop_the_others(hub: Hub) -> None:
    def broken(_channel: str, _message: object) -> None:
        raise ValueError

    hub.listen(EVENTS, broken)
    heard = await hear(hub, EVENTS)

    await asyncio.to_thread(publish, EVENTS, ["first"])
    await asyncio.to_thread(publish, EVENTS, ["second"])

    assert [await asyncio.wait_for(heard.get(), 5) for _ in range(2)] == ["first", "second"]


async def test_a_cut_connection_is_told_and_opened_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "FIRST_PAUSE_S", 0.01)
    told: asyncio.Queue[bool] = asyncio.Queue()
    heard = await hear(hub, EVENTS)
    hub.watch(told.put_nowait)

    def cut() -> None:
        # Other workers listen on the same server, each with its own database number.
        number = wire_name(EVENTS).rpartition(":")[2]
        listening = redis_client().client_list(_type="pubsub")
        mine = [client["id"] for client in listening if client["db"] == number]
        assert mine
        for client_id in mine:
            redis_client().client_kill_filter(_id=client_id)

    await asyncio.to_thread(cut)
    states = [await asyncio.wait_for(told.get(), 5) for _ in range(2)]
    await asyncio.to_thread(publish, EVENTS, ["after"])

    assert states == [False, True]
    assert await asyncio.wait_for(heard.get(), 5) == "after"


def test_channels_of_two_databases_on_one_server_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "_database_number", lambda: 3)

    assert wire_name(EVENTS) == "berth:events:3"
