from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.db import transaction

from portal.common import live

Capture = Callable[..., AbstractContextManager[list[Callable[[], Any]]]]
pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any]]]:
    """Return what is published, in order."""
    found: list[tuple[str, list[Any]]] = []
    monkeypatch.setattr(live, "publish", lambda channel, messages: found.append((channel, list(messages))))
    return found


def test_the_news_of_a_transaction_goes_as_one_message_a_channel(
    sent: list[tuple[str, list[Any]]], django_capture_on_commit_callbacks: Capture
) -> None:
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        live.publish_on_commit(live.EVENTS, ["cleaning"])
        live.publish_on_commit(live.EVENTS, ["ended"])
        live.publish_on_commit(live.NODES, ["gpu-01"])

    assert sent == [(live.EVENTS, ["cleaning", "ended"]), (live.NODES, ["gpu-01"])]


def test_news_of_a_step_that_was_undone_is_not_told(
    sent: list[tuple[str, list[Any]]], django_capture_on_commit_callbacks: Capture
) -> None:
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        live.publish_on_commit(live.EVENTS, ["kept"])
        with transaction.atomic():
            live.publish_on_commit(live.EVENTS, ["undone"])
            transaction.set_rollback(True)

    assert sent == [(live.EVENTS, ["kept"])]
