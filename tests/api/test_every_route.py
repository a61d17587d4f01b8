"""What holds for every call of the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from django.urls import URLPattern, URLResolver

from portal.api.urls import v1
from tests.api.fingerprint import fingerprint
from tests.api.missing import MISSING
from tests.api.routes import ROUTES, WRITES
from tests.api.scene import scene
from tests.portal.builders import World, build_world
from tests.portal.shared import Shared

pytestmark = pytest.mark.django_db
VARYING = {"instance", "request_id"}


@pytest.fixture(scope="module")
def world(shared: Shared) -> World:
    return shared(build_world)


@pytest.fixture(scope="module")
def objects(world: World, shared: Shared) -> dict[str, str]:
    return shared(lambda: scene(world))


def _patterns() -> Iterator[URLPattern]:
    for entry in v1:
        assert not isinstance(entry, URLResolver)
        yield entry


def _same(path: str, route: str) -> bool:
    left, right = path.split("/"), route.split("/")
    return len(left) == len(right) and all(
        a.startswith("<") or a == b for a, b in zip(left, right, strict=True)
    )


def test_every_route_is_in_the_table() -> None:
    missing = []
    for pattern in _patterns():
        methods = pattern.callback.cls().allowed_methods  # type: ignore[union-attr]
        listed = {route.method for route in ROUTES if _same(str(pattern.pattern), route.path)}
        missing += [f"{method} {pattern.pattern}" for method in methods if method not in listed]

    assert missing == []


def test_every_post_takes_an_idempotency_key() -> None:
    views = [p.callback.cls for p in _patterns() if hasattr(p.callback.cls, "post")]  # type: ignore[union-attr]

    assert [v.__name__ for v in views if not getattr(v.post, "is_idempotent", False)] == []


def test_the_one_who_may_gets_the_answer_that_the_schema_describes(
    objects: dict[str, str], calls: Any, answer_fits: Any
) -> None:
    callers = {name: calls(name) for name in {route.who for route in ROUTES}}

    for route in ROUTES:
        with transaction.atomic():
            answer = callers[route.who].call(route.method, route.at(objects), route.body, **route.headers)
            assert answer.status_code == route.status, (route, answer.content)
            answer_fits(route, answer)
            transaction.set_rollback(True)


def test_without_a_token_nothing_answers_and_nothing_redirects(objects: dict[str, str], calls: Any) -> None:
    nobody, before = calls(""), fingerprint()

    for route in ROUTES:
        answer = nobody.call(route.method, route.at(objects), route.body)
        assert answer.status_code == 401, route
        assert answer["Content-Type"] == "application/problem+json"
        assert answer["WWW-Authenticate"].startswith("Bearer")
        assert answer.json()["code"] == "not_authenticated"
    assert fingerprint() == before


def test_charlie_cannot_tell_a_foreign_object_from_a_missing_one(objects: dict[str, str], calls: Any) -> None:
    charlie, before = calls("charlie"), fingerprint()

    for route in (r for r in ROUTES if r.is_foreign):
        foreign = charlie.call(route.method, route.at(objects), route.body, **route.headers)
        missing = charlie.call(route.method, route.at(objects | MISSING), route.body, **route.headers)
        assert foreign.status_code in (403, 404), (route, foreign.content)
        assert foreign.status_code == missing.status_code, route
        assert _plain(foreign) == _plain(missing), route
    assert fingerprint() == before


def test_lists_show_charlie_nothing_of_bobs(objects: dict[str, str], calls: Any) -> None:
    charlie = calls("charlie")
    marks = [objects["lease"], objects["ended"], objects["queued"], objects["awaiting"], "perception"]

    for route in (r for r in ROUTES if r.method == "GET" and "{" not in r.path and r.who == "bob"):
        text = charlie.get(route.path).content.decode()
        assert [mark for mark in marks if mark in text] == [], route


def test_a_reading_token_changes_nothing(objects: dict[str, str], calls: Any, world: World) -> None:
    callers = {name: calls(name, "read") for name in {route.who for route in ROUTES}}
    before = fingerprint()

    for route in (r for r in ROUTES if r.method != "GET" and r.path != "quote/"):
        answer = callers[route.who].call(route.method, route.at(objects), route.body, **route.headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing"), route
    assert fingerprint() == before


@pytest.mark.deep
def test_wrong_methods_are_named_with_those_that_work(objects: dict[str, str], calls: Any) -> None:
    operator, before = calls("operator"), fingerprint()

    for path in {route.path for route in ROUTES}:
        allowed = {route.method for route in ROUTES if route.path == path}
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} - allowed:
            answer = operator.call(method, path.format(**objects))
            assert answer.status_code == 405, (method, path)
            assert answer.json()["code"] == "method_not_allowed"
            assert set(answer["Allow"].split(", ")) - {"HEAD"} == allowed
    assert fingerprint() == before


def test_unknown_parameters_and_fields_are_refused(objects: dict[str, str], calls: Any) -> None:
    callers = {name: calls(name) for name in {route.who for route in ROUTES}}
    before = fingerprint()

    for route in ROUTES:
        answer = callers[route.who].call(
            route.method, route.at(objects) + "?nonsense=1", route.body, **route.headers
        )
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "unknown_parameter"), route
    for route in WRITES:
        body = {**(route.body or {}), "is_admin": True}
        answer = callers[route.who].call(route.method, route.at(objects), body, **route.headers)
        assert answer.status_code == 422, (route, answer.content)
        assert answer.json()["errors"][0] == {
            "field": "is_admin", "code": "unknown_field", "detail": "There is no such field.",
        }  # fmt: skip
    assert fingerprint() == before


def test_addresses_that_do_not_exist_are_problems_too(calls: Any) -> None:
    nobody = calls("")

    lost = nobody.get("nothing/here/")
    slip = nobody.post("requests", {})

    assert (lost.status_code, lost.json()["code"]) == (404, "not_found")
    assert slip.status_code == 404
    assert "/api/v1/requests/" in slip.json()["detail"]


def _plain(answer: Any) -> Any:
    body = answer.json()
    return {key: value for key, value in body.items() if key not in VARYING}
