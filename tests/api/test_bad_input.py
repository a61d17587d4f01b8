"""Input that no well-meaning client sends: a clear 4xx, nothing changed, the process alive."""

from __future__ import annotations

import json
from typing import Any

import pytest

from portal.api.parsers import MAX_BYTES
from tests.api.fingerprint import fingerprint
from tests.api.routes import WRITES
from tests.api.scene import scene
from tests.hostile.plenty import some
from tests.portal.builders import World

ASK = {"flavor": "h100-1g-10gb", "duration_s": 3600}
BODIES: tuple[tuple[str, bytes, int], ...] = (
    ("empty", b"", 422),
    ("list", b"[]", 422),
    ("list of objects", b'[{"flavor": "h100"}]', 422),
    ("text", b'"h100"', 422),
    ("number", b"7", 422),
    ("null", b"null", 422),
    ("true", b"true", 422),
    ("half", b'{"flavor": "h100"', 400),
    ("two values", b"{} {}", 400),
    ("single quotes", b"{'flavor': 'h100'}", 400),
    ("trailing comma", b'{"flavor": "h100",}', 400),
    ("duplicate key", b'{"flavor": "h100", "flavor": "h100", "duration_s": 60}', 400),
    ("duplicate key inside", b'{"flavor": {"a": 1, "a": 2}}', 400),
    ("NaN", b'{"flavor": "h100", "duration_s": NaN}', 400),
    ("Infinity", b'{"flavor": "h100", "duration_s": -Infinity}', 400),
    ("1e400", b'{"flavor": "h100", "duration_s": 1e400}', 400),
    ("5000 digits", b'{"flavor": "h100", "duration_s": ' + b"9" * 5000 + b"}", 400),
    ("NUL", b'{"flavor": "h100\\u0000", "duration_s": 60}', 400),
    ("NUL in a key", b'{"fl\\u0000avor": "h100"}', 400),
    ("raw NUL", b'{"flavor": "h100\x00"}', 400),
    ("lone surrogate", b'{"flavor": "\\ud800", "duration_s": 60}', 400),
    ("bad UTF-8", b'{"flavor": "\xff\xfe"}', 400),
    ("UTF-16", json.dumps(ASK).encode("utf-16"), 400),
    ("byte order mark", b"\xef\xbb\xbf{}", 400),
    ("deep lists", b"[" * 5000, 400),
    ("deep closed lists", b"[" * 3000 + b"]" * 3000, 400),
    ("33 levels", b'{"a":' * 33 + b"1" + b"}" * 33, 400),
    ("3 MB", b'{"flavor": "' + b"x" * (3 * MAX_BYTES) + b'"}', 413),
    ("CSV", b"flavor,duration_s\nh100,60", 400),
)
VALUES: tuple[dict[str, Any], ...] = (
    {"duration_s": 2**31}, {"duration_s": 2**63}, {"duration_s": -1}, {"duration_s": 0}, {"duration_s": 1.5},
    {"duration_s": "60"}, {"duration_s": True}, {"duration_s": None}, {"duration_s": []}, {"duration_s": {}},
    {"count": 0}, {"count": -(2**40)}, {"count": 10**9}, {"count": "2"}, {"count": None}, {"count": 1e3},
    {"flavor": ""}, {"flavor": "x" * 51}, {"flavor": 7}, {"flavor": None}, {"flavor": ["h100"]},
    {"flavor": "no-such"}, {"flavor": "' OR 1=1 --"}, {"flavor": "h100 {{7*7}} ${7*7}"},
    {"priority": "urgent"}, {"priority": 10}, {"priority": None}, {"priority": "HIGH"},
    {"name": "x" * 81}, {"name": 5}, {"name": None}, {"name": {"a": 1}}, {"purpose": "x" * 301},
    {"load_pattern": "fork bomb"}, {"load_pattern": None}, {"team": ""}, {"team": "x" * 51}, {"team": 1},
    {"state": "granted"}, {"quote_micro": 0}, {"id": "req-1"}, {"author": "alice"}, {"__proto__": {}},
)  # fmt: skip
ADDRESSES = (
    "requests/?state=%00", "requests/%00/", "requests/?team=%ED%A0%80", "requests/?page_size=0",
    "requests/?page_size=201", "requests/?page_size=-1", "requests/?page_size=1e3", "requests/?page_size=" + "9" * 5000,
    "requests/?cursor=abc", "requests/?cursor=" + "9" * 30, "requests/?cursor=٣", "requests/?ordering=author__password",
    "requests/?state=nonsense", "requests/?submitted_after=yesterday",
    "requests/?submitted_after=0001-01-01T00:00:00%2B14:00",
    "requests/?submitted_before=9999-12-31T23:59:59-14:00", "requests/?team=" + "x" * 5000,
    "requests/?author__password=1", "leases/?ended_after=2026-13-01T00:00:00Z", "leases/?node=%ff",
    "notifications/?unread=maybe%00", "notifications/?unread=", "people/?is_closed=maybe", "leases/?awaiting_me=1",
    "requests/?awaiting_me=yes", "usage/?month=9999999-99", "usage/?month=%00",
    "leases/" + "9" * 5000 + "/", "leases/../../etc/passwd/", "requests/%2e%2e%2f/", "tokens/" + "9" * 30 + "/",
    "teams/%F0%9F%9A%80/", "requests/🚀/", "invoices/perception/0000-00/", "invoices/perception/2026-02-31/",
    "flavors/%3Cscript%3E/", "nodes/gpu-01%0d%0aSet-Cookie:x/", "lease-events/?since=NaN",
)  # fmt: skip
TYPES = (
    ("text/plain", 415), ("application/xml", 415), ("multipart/form-data; boundary=x", 415), ("", 415),
    ("application/x-www-form-urlencoded", 415), ("application/json; charset=utf-16", 415),
    ("application/json; charset=nonsense", 415), ("application/merge-patch+json", 415), ("json", 415),
)  # fmt: skip


def _is_problem(answer: Any) -> bool:
    body = answer.json()
    wanted = {"type", "title", "status", "code", "detail", "next", "instance", "request_id"}
    return (
        answer["Content-Type"] == "application/problem+json"
        and wanted <= set(body)
        and body["status"] == answer.status_code
        and bool(body["request_id"])
        and "Traceback" not in answer.content.decode()
    )


def test_bodies_that_are_no_request_are_refused_and_change_nothing(world: World, calls: Any) -> None:
    bob, before = calls("bob"), fingerprint()

    for name, body, status in BODIES:
        answer = bob.post("requests/", body)
        assert (answer.status_code, _is_problem(answer)) == (status, True), (name, answer.content[:300])
    assert fingerprint() == before
    assert bob.post("requests/", ASK).status_code == 201


@pytest.mark.deep
def test_every_write_refuses_bodies_that_are_not_json(world: World, calls: Any) -> None:
    objects = scene(world)
    callers = {name: calls(name) for name in {route.who for route in WRITES}}
    before = fingerprint()

    for nth, route in enumerate(WRITES):
        for name, body, _status in some(BODIES, nth):
            if name in ("empty", "null") or (name == "true" and route.body is None):
                continue
            answer = callers[route.who].call(route.method, route.at(objects), body, **route.headers)
            assert answer.status_code in (400, 413, 422), (route, name, answer.content[:300])
    assert fingerprint() == before


def test_values_that_do_not_fit_are_named_by_field(world: World, calls: Any) -> None:
    bob, before = calls("bob"), fingerprint()

    for values in VALUES:
        answer = bob.post("requests/", {**ASK, **values})
        assert answer.status_code in (404, 422), (values, answer.content[:300])
        assert _is_problem(answer), values
        if answer.status_code == 422:
            assert {e["field"] for e in answer.json()["errors"]} == set(values), (values, answer.json())
    assert fingerprint() == before


def test_addresses_that_make_no_sense_are_refused(world: World, calls: Any) -> None:
    bob, before = calls("bob"), fingerprint()

    for address in ADDRESSES:
        answer = bob.get(address)
        assert answer.status_code in (400, 404, 422), (address[:80], answer.status_code)
        assert _is_problem(answer), address
    assert fingerprint() == before


def test_only_json_in_utf8_is_taken(world: World, calls: Any) -> None:
    bob, before = calls("bob"), fingerprint()

    for kind, status in TYPES:
        answer = bob.client.generic("POST", "/api/v1/requests/", json.dumps(ASK), content_type=kind)
        assert (answer.status_code, _is_problem(answer)) == (status, True), (kind, answer.content)
    assert fingerprint() == before


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Bearer bth_" + "x" * 5000,
        "Bearer bth_\x7f",
        "Bearer bth_ü",
        "Basic YTpi",
    ],
)
def test_headers_that_are_no_token_are_401(header: str, world: World, calls: Any) -> None:
    answer = calls("").get("me/", Authorization=header)

    assert answer.status_code == 401
    assert _is_problem(answer)


def test_a_body_in_chunks_is_asked_for_its_length(world: World, calls: Any) -> None:
    answer = calls("bob").client.generic(
        "POST", "/api/v1/requests/", headers={"Transfer-Encoding": "chunked"}
    )

    assert (answer.status_code, answer.json()["code"]) == (411, "length_required")


def test_text_with_every_kind_of_character_comes_back_as_it_was(world: World, calls: Any) -> None:
    name = "‮naïve 🚀 语音 <script>alert(1)</script> [[[[{{{{ ' \" \\ %s {0}"

    answer = calls("bob").post("requests/", {**ASK, "name": name})

    assert (answer.status_code, answer.json()["name"]) == (201, name)


def test_a_session_needs_its_csrf_proof(world: World) -> None:
    from django.test import Client

    client = Client(enforce_csrf_checks=True)
    client.force_login(world.user("bob"))

    seen = client.get("/api/v1/me/")
    refused = client.post("/api/v1/requests/", ASK, content_type="application/json")

    assert seen.status_code == 200
    assert (refused.status_code, refused.json()["code"]) == (403, "csrf_refused")


def test_a_store_that_is_away_is_a_503_with_a_time_to_come_back(
    world: World, calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    def away(*_args: object, **_kwargs: object) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    bob = calls("bob")
    monkeypatch.setattr("portal.api.requests.requests.submit_request", away)

    answer = bob.post("requests/", ASK)

    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (503, "unavailable", "3")


def test_a_fault_of_ours_is_a_500_that_tells_nothing_but_its_id(
    world: World, calls: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: object, **_kwargs: object) -> None:
        raise KeyError("secret-of-the-house")

    bob = calls("bob")
    monkeypatch.setattr("portal.api.requests.requests.submit_request", broken)

    answer = bob.post("requests/", ASK)

    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "secret-of-the-house" not in answer.content.decode()
    assert "unexpected error in Requests" in caplog.text
