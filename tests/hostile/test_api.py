"""Every call of the API by every role, with addresses, parameters, headers and bodies spoilt: never a 5xx."""

from __future__ import annotations

import json
import random
from typing import Any
from urllib.parse import quote, quote_from_bytes

import pytest
from django.db import transaction
from django.test import Client

from tests.api.missing import MISSING
from tests.api.routes import ROUTES, Route
from tests.api.scene import scene
from tests.api.test_nonsense import _called, _properties
from tests.hostile import nasty
from tests.hostile.plenty import Surface
from tests.portal.builders import World

PEOPLE = ("bob", "alice", "charlie", "approver", "finance", "operator")
KINDS = (
    "application/json",
    "application/json; charset=utf-16",
    "text/plain",
    "multipart/form-data; boundary=x",
    "",
)


@pytest.mark.deep
def test_no_call_of_any_role_answers_with_a_5xx(world: World, openapi: Any) -> None:
    objects = scene(world)
    secrets = {name: world.token(name) for name in PEOPLE} | {
        "nobody": "",
        "reader": world.token("bob", "read"),
    }
    # Of a role in the address the schema has a name, the table of routes a value.
    asked = {str(route): _asked(openapi, route) for route in ROUTES if "/researcher/" not in route.path}
    client = Client(raise_request_exception=False)

    with Surface("api", 0.24) as surface:
        rng = surface.rng
        for _ in range(surface.count):
            route = rng.choice(ROUTES)
            names, fields = asked.get(str(route), ([], []))
            who = route.who if rng.random() < 0.6 else rng.choice(list(secrets))
            path = "/api/v1/" + _address(route, objects, rng) + _query(names, rng)
            headers = _headers(route, secrets[who], rng)
            body, kind = _body(route, fields, rng)
            with transaction.atomic():
                answer = client.generic(route.method, path, body, content_type=kind, headers=headers)
                transaction.set_rollback(True)
            sent = (route.method, path[:200], who, body[:300])
            surface.note(
                answer.status_code,
                sent,
                is_wrong=answer.status_code >= 500,
                told=b"" if answer.streaming else answer.content,
            )


def _asked(openapi: Any, route: Route) -> tuple[list[str], list[str]]:
    """Return the names of a call's parameters and of its body's fields."""
    parameters = _called(openapi, route).get("parameters", ())
    return [p["name"] for p in parameters if p["in"] == "query"], list(_properties(openapi, route))


def _address(route: Route, objects: dict[str, str], rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.7:
        return route.at(objects)
    if kind < 0.8:
        return route.at(objects | MISSING)
    place = rng.choice(list(objects))
    return route.at({**objects, place: _quoted(nasty.text(rng)[:2_000])})


def _query(names: list[str], rng: random.Random) -> str:
    if rng.random() < 0.5:
        return ""
    chosen = [
        rng.choice(names) if names and rng.random() < 0.85 else nasty.text(rng)[:50]
        for _ in range(rng.choice((1, 1, 2)))
    ]
    return "?" + "&".join(f"{_quoted(name)}={_quoted(nasty.text(rng)[:3_000])}" for name in chosen)


def _quoted(text: str) -> str:
    """Percent-encoded, broken characters as the bytes that a careless program sends."""
    return quote_from_bytes(text.encode("utf-8", "surrogatepass"), safe="")


def _headers(route: Route, secret: str, rng: random.Random) -> dict[str, str]:
    headers = {**route.headers, **({"Authorization": f"Bearer {secret}"} if secret else {})}
    if rng.random() < 0.1:
        name = rng.choice(
            ("If-Match", "Idempotency-Key", "Accept", "Accept-Language", "Authorization", "X-Forwarded-For")
        )
        headers[name] = quote(nasty.text(rng)[:300].encode("utf-8", "replace").decode(), safe=" ;,'\"{}<>=%")
    return headers


def _body(route: Route, fields: list[str], rng: random.Random) -> tuple[bytes, str]:
    if route.method in ("GET", "DELETE"):
        return b"", "application/json"
    whole = dict(route.body or {})
    if fields and rng.random() < 0.6:
        whole[rng.choice(fields)] = nasty.value(rng)
    elif rng.random() < 0.8:
        whole = nasty.spoilt(whole, rng)
    raw = json.dumps(whole).encode()
    if rng.random() < 0.05 and raw:
        at = rng.randrange(len(raw))
        raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
    return raw, KINDS[0] if rng.random() < 0.97 else rng.choice(KINDS)
