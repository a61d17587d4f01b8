"""A worker whose broker does not take an acknowledgement connects anew instead of waiting for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu.asynchronous import Hub, set_event_loop
from kombu.message import Message
from redis.exceptions import TimeoutError as BrokerTimeout

from portal.celery import app
from portal.worker import Request
from scheduler import tasks


class Broker:
    """A channel that takes answers, or does not answer in time."""

    no_ack_consumers = None

    def __init__(self, *, is_late: bool) -> None:
        self.is_late = is_late

    def basic_ack(self, tag: str, multiple: bool = False) -> None:
        if self.is_late:
            raise BrokerTimeout("Timeout reading from socket")

    def basic_reject(self, tag: str, requeue: bool = False) -> None:
        self.basic_ack(tag)


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    set_event_loop(hub)
    yield hub
    hub.close()


def request(*, is_late: bool) -> Request:
    message = Message(
        body=b"[[], {}, {}]", delivery_tag="7", channel=Broker(is_late=is_late),
        headers={"id": "a-task", "task": tasks.tick.name}, content_type="application/json", content_encoding="utf-8",
    )  # fmt: skip
    return Request(
        message, app=app, task=tasks.tick, on_ack=message.ack_log_error, on_reject=message.reject_log_error,
        connection_errors=(BrokerTimeout,), eventer=Quiet(),
    )  # fmt: skip


class Quiet:
    enabled = False

    def send(self, *args: Any, **kwargs: Any) -> None:
        """Nobody listens."""


def test_every_task_is_carried_by_our_request() -> None:
    assert tasks.tick.Request == "portal.worker:Request"


@pytest.mark.parametrize("answer", ["acknowledge", "reject"])
def test_an_answer_that_is_not_taken_ends_the_connection(hub: Hub, answer: str) -> None:
    getattr(request(is_late=True), answer)()

    with pytest.raises(ConnectionError, match="did not take the acknowledgement of 7"):
        next(hub.create_loop())


def test_an_answer_that_is_taken_changes_nothing(hub: Hub) -> None:
    request(is_late=False).acknowledge()

    next(hub.create_loop())
