from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from portal.common.wsgi import PIECE, Message, ThreadedWsgi, environ_of

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/grün",
    "root_path": "",
    "query_string": b"a=1",
    "http_version": "1.1",
    "scheme": "http",
    "server": ("127.0.0.1", 8000),
    "client": ("127.0.0.2", 5000),
    "headers": [(b"content-type", b"text/plain"), (b"x-one", b"1"), (b"x-one", b"2")],
}


def body(*parts: bytes) -> list[Message]:
    last = len(parts) - 1
    return [{"type": "http.request", "body": p, "more_body": i < last} for i, p in enumerate(parts)]


def answer(application: Any, incoming: list[Message]) -> list[Message]:
    """Run one call; returns what was sent."""
    sent: list[Message] = []
    waiting = iter(incoming)

    async def receive() -> Message:
        return next(waiting)

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(ThreadedWsgi(application, workers=1)(SCOPE, receive, send))
    return sent


def echo(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
    start("201 Created", [("X-Seen", "yes")])
    return [environ["wsgi.input"].read(), b"!"]


def test_an_ordinary_answer_is_one_message_after_its_head() -> None:
    sent = answer(echo, body(b"he", b"llo"))

    assert sent == [
        {"type": "http.response.start", "status": 201, "headers": [(b"x-seen", b"yes")]},
        {"type": "http.response.body", "body": b"hello!"},
    ]


def test_a_long_answer_goes_in_pieces_and_ends_once() -> None:
    def long(_environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [])
        return (bytes([n]) * PIECE for n in range(3))

    head, *parts = answer(long, body(b""))

    assert head["type"] == "http.response.start"
    assert b"".join(part["body"] for part in parts) == b"".join(bytes([n]) * PIECE for n in range(3))
    assert max(len(part["body"]) for part in parts) <= 2 * PIECE
    assert [part.get("more_body", False) for part in parts].count(False) == 1
    assert not parts[-1].get("more_body", False)


def test_what_the_application_returned_is_closed() -> None:
    class Answer(list[bytes]):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    made = Answer([b"x"])

    def application(_environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [])
        return made

    answer(application, body(b""))

    assert made.closed == 1


def test_nothing_runs_for_a_client_that_left_before_its_body_was_whole() -> None:
    ran: list[str] = []

    def application(_environ: dict[str, Any], _start: Any) -> Iterable[bytes]:
        ran.append("yes")
        return []

    sent = answer(application, [*body(b"he", b"")[:1], {"type": "http.disconnect"}])

    assert (ran, sent) == ([], [])


def test_the_environment_is_that_of_pep_3333() -> None:
    environ = environ_of(SCOPE, b"")

    assert environ["PATH_INFO"].encode("latin-1").decode() == "/grün"
    assert environ["QUERY_STRING"] == "a=1"
    assert environ["CONTENT_TYPE"] == "text/plain"
    assert environ["HTTP_X_ONE"] == "1,2"
    assert (environ["SERVER_NAME"], environ["SERVER_PORT"]) == ("127.0.0.1", "8000")
    assert environ["REMOTE_ADDR"] == "127.0.0.2"
