"""Static files: kept by browsers for a year, small on the wire, and found again after an upgrade."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from portal.common.static_files import digest

FIRST_PAGE_BYTES = 100_000


def _fetch(client: Client, path: str) -> bytes:
    answer = client.get(path, headers={"Accept-Encoding": "gzip"})
    assert answer.status_code == 200, path
    return answer.getvalue()


def _text(body: bytes) -> str:
    return (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body).decode()


@pytest.mark.django_db
def test_first_page_with_all_that_it_loads_is_small(client: Client) -> None:
    page = _fetch(client, "/sign-in/")
    waiting = ["/jsi18n/", *re.findall(r'(?:href|src)="(/[^"#]+\.(?:css|js|svg))[#"]', _text(page))]
    sizes: dict[str, int] = {"": len(page)}
    while waiting:
        path = waiting.pop()
        if path in sizes:
            continue
        body = _fetch(client, path)
        sizes[path] = len(body)
        folder = path.rpartition("/")[0]
        modules = re.findall(r'^import .*"\./([^"]+)";', _text(body), re.MULTILINE)
        waiting += [f"{folder}/{name}" for name in modules]
    assert len(sizes) > 10
    assert sum(sizes.values()) <= FIRST_PAGE_BYTES, sorted(sizes.items(), key=lambda item: -item[1])


def test_file_is_kept_for_ever_and_compressed(client: Client) -> None:
    plain = client.get(f"{settings.STATIC_URL}css/app.css")
    packed = client.get(f"{settings.STATIC_URL}css/app.css", headers={"Accept-Encoding": "gzip"})

    assert "immutable" in packed["Cache-Control"]
    assert packed["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.getvalue()) == plain.getvalue()


def test_part_of_a_file_and_an_answer_of_the_api_stay_as_they_are(client: Client) -> None:
    part = client.get(
        f"{settings.STATIC_URL}css/app.css", headers={"Accept-Encoding": "gzip", "Range": "bytes=0-999"}
    )
    schema = client.get("/api/schema/", headers={"Accept-Encoding": "gzip"})

    assert part.status_code == 206
    assert "Content-Encoding" not in part
    assert "Content-Encoding" not in schema


@pytest.mark.parametrize("old", ["/static/0123456789ab/js/live.js", "/static/js/live.js"])
def test_page_from_before_an_upgrade_finds_the_file_as_it_is_now(client: Client, old: str) -> None:
    answer = client.get(old)

    assert answer["Location"] == f"{settings.STATIC_URL}js/live.js"
    assert client.get(answer["Location"]).status_code == 200


@pytest.mark.parametrize("path", ["js/no-such.js", "../manage.py", "0123456789ab/no-such.css", ""])
def test_file_that_is_nowhere_is_not_found(client: Client, path: str) -> None:
    assert client.get(f"{settings.STATIC_URL}{path}").status_code == 404
    assert client.get(f"/static/{path}", follow=True).status_code == 404


def test_old_address_leads_to_no_other_host(client: Client) -> None:
    assert client.get("/static///example.org/x")["Location"].startswith(settings.STATIC_URL)


def test_digest_changes_with_any_file(tmp_path: Path) -> None:
    def after_all() -> str:
        digest.cache_clear()
        return digest(tmp_path)

    (tmp_path / "one.css").write_text("a")
    before = after_all()
    (tmp_path / "one.css").write_text("b")
    changed = after_all()
    (tmp_path / "one.css").rename(tmp_path / "two.css")

    assert len({before, changed, after_all()}) == 3
