"""``berth logs --follow`` asks for more when the live socket says that there is more, and hardly otherwise."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.sync.server import Server, ServerConnection, serve

from portal.cli import job_news
from portal.cli.job_news import JobNews
from portal.cli.jobs import follow_job, print_log

JOB = "job-1"


class PlayedPortal:
    """What the API says of one job, and a live socket that tells of it when the test wants."""

    def __init__(self) -> None:
        self.text, self.state, self.asked = "one\n", "running", 0
        self.looked = threading.Condition()
        self.socket: ServerConnection | None = None
        self.headers: list[str | None] = []

    def get(self, path: str, **given: str) -> dict[str, Any]:
        with self.looked:
            self.asked += 1
            self.looked.notify_all()
            if path == f"jobs/{JOB}/":
                return {"state": self.state, "tries": [{"number": 1}]}
            offset = int(given["offset"])
            return {
                "attempt": 1, "offset": offset, "next": len(self.text), "text": self.text[offset:],
                "is_done": self.state != "running",
            }  # fmt: skip

    def serve_one(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.headers.append(socket.request.headers.get("Authorization"))
        for topic in json.loads(socket.recv())["topics"]:
            socket.send(json.dumps({"type": "snapshot", "topic": topic, "data": {}}))
        with self.looked:
            self.socket = socket
            self.looked.notify_all()
        for _ in socket:
            pass

    def until_asked(self, count: int) -> None:
        with self.looked:
            assert self.looked.wait_for(lambda: self.asked >= count, 10), self.asked

    def change(self, text: str = "", state: str = "") -> None:
        with self.looked:
            self.text += text
            self.state = state or self.state

    def tell(self, **word: Any) -> None:
        with self.looked:  # the client asks as soon as the first snapshot is there, of which more follow
            assert self.looked.wait_for(lambda: self.socket, 10)
        assert self.socket is not None
        self.socket.send(json.dumps(word))


@contextmanager
def listening(portal: PlayedPortal) -> Iterator[int]:
    with serve(portal.serve_one, "127.0.0.1", 0) as server:
        assert isinstance(server, Server)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield int(server.socket.getsockname()[1])
        server.shutdown()
    thread.join()


def test_follower_asks_again_only_when_told(capsys: pytest.CaptureFixture[str]) -> None:
    portal, ended = PlayedPortal(), []

    def follow(port: int) -> None:
        with JobNews(f"http://127.0.0.1:{port}", "bth_x", JOB) as news:
            print_log(portal, JOB, attempt=0, news=news)
            ended.append(follow_job(portal, JOB, news))

    with listening(portal) as port:
        thread = threading.Thread(target=follow, args=(port,))
        thread.start()
        portal.until_asked(3)  # all there is, nothing more, and once again when the socket tells
        portal.tell(type="event", topic="me", event="lease.active", lease="lse-1")
        portal.tell(type="event", topic="me", event="job.running", job="job-2")
        portal.change("two\n")
        portal.tell(type="frame", topic=f"job:{JOB}", data={"attempt": 1, "size": 8})
        portal.until_asked(5)
        portal.change(state="succeeded")
        portal.tell(type="event", topic="me", event="job.succeeded", job=JOB)
        thread.join(10)

    assert capsys.readouterr().out == "one\ntwo\n"
    assert [one["state"] for one in ended] == ["succeeded"]
    assert portal.headers == ["Bearer bth_x"]
    assert portal.asked == 8  # two more for the end of the log, one for the end of the job


def test_without_a_socket_it_looks_again_after_pauses_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(job_news.time, "sleep", pauses.append)

    with JobNews("http://127.0.0.1:1", "", JOB) as news:
        for _ in range(20):
            news.wait()
        news.came()
        news.wait()

    assert pauses[0] == pauses[-1] == job_news.FIRST_S
    assert pauses[-2] == job_news.SLOWEST_S
