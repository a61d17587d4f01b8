"""Large downloads hold up neither pages nor each other: threads of their own, and few for each person."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakSet

import pytest
from django.urls import reverse

from portal import asgi
from portal.common import downloads
from portal.common.downloads import Download
from portal.common.errors import TooManyDownloads


def streamed(_environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"x"] * 100


async def test_page_is_answered_while_nobody_reads_what_they_download(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asgi.pages, "app", streamed)
    monkeypatch.setattr(asgi.large_files, "app", streamed)
    is_read, answered = asyncio.Event(), []

    async def call(path: str, send: Any) -> None:
        scope = {"type": "http", "method": "GET", "http_version": "1.1", "query_string": b"", "headers": []}
        await asgi.application({**scope, "path": path}, asyncio.Event().wait, send)

    async def never(_message: Any) -> None:
        await is_read.wait()

    async def at_once(message: Any) -> None:
        answered.append(message)

    slow = [asyncio.create_task(call("/jobs/job-1/log/raw/", never)) for _ in range(asgi.HTTP_THREADS + 1)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await call("/jobs/", at_once)
    finally:
        is_read.set()
        await asyncio.gather(*slow)

    assert answered[0]["status"] == 200


def test_all_addresses_of_files_are_downloads_and_pages_are_none() -> None:
    of_files = [
        reverse("web:job_raw", args=["job-1"]), reverse("web:job_artifact", args=["job-1", 7]),
        reverse("api:raw-log", args=["job-1"]), reverse("api:artifact", args=["job-1", 7]),
    ]  # fmt: skip
    others = [reverse("web:job", args=["job-1"]), reverse("web:job_log", args=["job-1"])]

    assert [downloads.is_download(path) for path in (*of_files, *others)] == [True] * 4 + [False] * 2


def download(person: int) -> Download:
    return Download(iter([b"x"]), person_id=person, content_type="text/plain")


@pytest.mark.django_db
def test_a_person_and_all_together_download_no_more_than_so_many_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Other tests of this process may have left some that nobody closed.
    monkeypatch.setattr(downloads, "_open", WeakSet())
    mine = [download(1) for _ in range(downloads.MOST_EACH)]
    with pytest.raises(TooManyDownloads, match="4 downloads of yours"):
        download(1)
    mine.pop().close()
    mine.append(download(1))
    others = [download(n) for n in range(2, 2 + downloads.MOST_AT_ONCE - len(mine))]
    with pytest.raises(TooManyDownloads, match="Too many people"):
        download(100)
    del others  # whoever forgets to close one gives it back with its last reference

    assert download(100).status_code == 200
