from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from portal.demo.trace import play as module
from portal.demo.trace.calls import ApiRefusal, Origin, TraceClient
from portal.demo.trace.mapping import BOB, TraceRequest
from portal.demo.trace.play import Play, SubmitRate
from portal.demo.trace.tokens import NoTokens, tokens_from


def wish(row: str = "pod-1", lifetime_s: float = 0.0) -> TraceRequest:
    return TraceRequest(row, BOB, "h100", 1, "normal", lifetime_s, 60)


class QuietNews:
    """A socket on which nothing is ever heard: the test speaks instead."""

    def __init__(self, *_given: Any) -> None:
        pass

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Portal:
    """Answers calls from memory; ``says`` is told of each call and may send events or raise a refusal."""

    origin = Origin("127.0.0.1", 1)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.states: dict[str, str] = {}
        self.says: Callable[[str, str], None] = lambda _path, _uid: None

    async def call(self, method: str, path: str, *, token: str, body: Any = None, key: str = "") -> Any:
        self.calls.append(f"{method} {path}")
        uid = f"req-{body['name']}" if path.endswith("/requests/") else path.split("/")[-3]
        self.says(path, uid)
        return {"id": uid, "state": "queued"}

    async def get(self, path: str, *, token: str) -> Any:
        if "/requests/" in path:
            return {"reasons": [{"code": "quota"}], "leases": ["lse-1"]}
        return {"id": "lse-1", "state": "active"}

    async def pages(self, path: str, *, token: str) -> AsyncIterator[Any]:
        for uid, state in self.states.items():
            yield {"id": uid, "state": state}


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> Portal:
    monkeypatch.setattr(module, "LiveNews", QuietNews)
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)
    return Portal()


def event(name: str, request: str, lease: str = "lse-1") -> dict[str, str]:
    return {"event": name, "request": request, "lease": lease}


def a_play(portal: Portal, *wishes: TraceRequest, patience_s: float = 60.0) -> Play:
    pace = SubmitRate(None, 2, patience_s)
    return Play(
        portal,  # type: ignore[arg-type]
        wishes,
        {"bob": "token"},
        pace=pace,
        name="test",
        since="2026-11-01T00:00:00Z",
        tell=lambda _text: None,
    )


async def finish(play: Play) -> None:
    async with asyncio.timeout(5):
        await play.run()


async def test_a_lease_is_released_at_its_time_and_followed_to_the_end(portal: Portal) -> None:
    play = a_play(portal, wish())

    def says(path: str, uid: str) -> None:
        if path.endswith("/release/"):
            play.take(event("request.fulfilled", "req-pod-1"))
        else:
            # Before the answer to the POST: news may overtake it.
            play.take(event("lease.active", uid))

    portal.says = says
    await finish(play)

    (run,) = play.runs
    assert (run.state, run.lease) == ("fulfilled", "lse-1")
    assert portal.calls == ["POST /api/v1/requests/", "POST /api/v1/leases/lse-1/release/"]


async def test_rows_are_submitted_in_their_order(portal: Portal) -> None:
    names = [f"pod-{n}" for n in range(20)]
    play = a_play(portal, *(wish(name) for name in names))
    asked: list[str] = []

    def says(path: str, uid: str) -> None:
        asked.append(uid)
        play.take(event("request.fulfilled", uid))

    portal.says = says
    await finish(play)

    assert asked == [f"req-{name}" for name in names]


async def test_a_refused_row_is_over_with_its_code(portal: Portal) -> None:
    play = a_play(portal, wish())

    def says(path: str, uid: str) -> None:
        raise ApiRefusal(422, "impossible", "too large")

    portal.says = says
    await finish(play)

    assert (play.runs[0].state, play.runs[0].reason) == ("refused", "impossible")


async def test_an_end_nobody_heard_of_is_found_in_the_lists(portal: Portal) -> None:
    portal.states = {"req-pod-1": "fulfilled", "req-of-somebody-else": "queued"}
    play = a_play(portal, wish())

    await finish(play)

    assert play.runs[0].state == "fulfilled"


async def test_an_activation_nobody_heard_of_is_found_and_released(portal: Portal) -> None:
    portal.states = {"req-pod-1": "granted"}
    play = a_play(portal, wish())

    def says(path: str, uid: str) -> None:
        if path.endswith("/release/"):
            portal.states["req-pod-1"] = "fulfilled"

    portal.says = says
    await finish(play)

    assert play.runs[0].lease == "lse-1"
    assert portal.calls.count("POST /api/v1/leases/lse-1/release/") == 1


async def test_a_row_that_never_starts_is_withdrawn_under_its_reason(portal: Portal) -> None:
    play = a_play(portal, wish(), patience_s=0.0)

    def says(path: str, uid: str) -> None:
        if path.endswith("/withdraw/"):
            play.take(event("request.withdrawn", "req-pod-1"))

    portal.says = says
    await finish(play)

    assert (play.runs[0].state, play.runs[0].reason) == ("withdrawn", "waits: quota")


async def test_a_gap_in_the_news_at_the_very_end_leaves_nobody_looking(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps: list[Callable[[], None]] = []

    class BrokenNews(QuietNews):
        def __init__(self, *given: Any) -> None:
            gaps.append(given[3])

    monkeypatch.setattr(module, "LiveNews", BrokenNews)
    monkeypatch.setattr(module, "LOOK_EVERY_S", 60)
    play = a_play(portal, wish())
    others = asyncio.all_tasks()
    began = asyncio.create_task(finish(play))
    while not play.runs[0].request:
        await asyncio.sleep(0)

    gaps[0]()
    play.take(event("request.fulfilled", "req-pod-1"))
    await began
    for _ in range(10):
        await asyncio.sleep(0)

    assert asyncio.all_tasks() == others


async def test_a_lost_lease_is_waited_for_again(portal: Portal) -> None:
    play = a_play(portal, wish(lifetime_s=60.0))
    began = asyncio.create_task(finish(play))
    await asyncio.sleep(0)
    while not play.runs[0].request:
        await asyncio.sleep(0)

    play.take(event("lease.active", "req-pod-1"))
    play.take(event("request.queued", "req-pod-1"))
    play.take(event("lease.active", "req-pod-1", lease="lse-2"))
    lease = play.runs[0].lease
    play.take(event("request.fulfilled", "req-pod-1"))
    await began

    assert lease == "lse-2"


async def test_a_portal_asking_for_patience_gets_it_and_the_call_is_made_again() -> None:
    answers = [
        b"HTTP/1.1 503 Busy\r\nretry-after: 0\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 429 Slow\r\nretry-after: 0\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b'HTTP/1.1 201 Made\r\ncontent-length: 11\r\n\r\n{"id":"r1"}',
    ]
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while answers:
            head = await reader.readuntil(b"\r\n\r\n")
            seen.append(head + await reader.readexactly(2))
            writer.write(answers.pop(0))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    api = TraceClient(Origin("127.0.0.1", server.sockets[0].getsockname()[1]), connections=1)
    async with server:
        made = await api.call("POST", "/x/", token="t", body={}, key="k-1")
        await api.close()

    assert made == {"id": "r1"}
    assert api.waits == 2
    assert len({head.split(b"Idempotency-Key: ")[1] for head in seen}) == 1


def test_a_malformed_list_is_refused_before_anything_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def must_not_be_called(*_given: Any, **_named: Any) -> None:
        raise AssertionError("the portal was called")

    monkeypatch.setattr(TraceClient, "call", must_not_be_called)
    bad = tmp_path / "pods.csv"
    bad.write_text("name,num_gpu\npod-1,1\n")

    with pytest.raises(CommandError, match="line 1: the column 'gpu_milli' is missing"):
        call_command("play_trace", str(bad))


def test_an_address_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    sample = Path(__file__).resolve().parents[1] / "data" / "openb_sample.csv"

    with pytest.raises(CommandError, match="is not an address like"):
        call_command("play_trace", str(sample), url="ftp://127.0.0.1")


@pytest.mark.parametrize(("option", "value"), [("--speed", "0"), ("--limit", "-1"), ("--rate", "nan")])
def test_an_option_out_of_range_is_refused(option: str, value: str) -> None:
    with pytest.raises(CommandError, match="is not a"):
        call_command("play_trace", "pods.csv", option, value)


def test_tokens_are_read_from_a_file_and_missing_ones_named(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text('{"bob": "bth_1"}')

    assert tokens_from(file, ["bob"]) == {"bob": "bth_1"}
    with pytest.raises(NoTokens, match="no token of alice"):
        tokens_from(file, ["alice", "bob"])
