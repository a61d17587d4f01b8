"""Nonsense in every field and parameter that the schema describes: 4xx with the field named, nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from tests.api.fingerprint import fingerprint
from tests.api.routes import ROUTES, WRITES, Route
from tests.api.scene import scene
from tests.hostile.plenty import some
from tests.portal.builders import World, build_world
from tests.portal.shared import Shared

pytestmark = pytest.mark.django_db
FOLDED = "x" * 5000
NEVER: dict[str, tuple[Any, ...]] = {
    "integer": ("7", "", 1.5, 1e300, True, [], {}),
    "boolean": ("yes", "", 1, 0, [], {}),
    "string": (5, 1.5, True, [], {}, ["a"]),
    "array": ("x", 5, True, {}, [[]], [{}], [5], [None], [FOLDED], ["x"] * 5000),
}
NEVER_INSTANTS = (
    "", "yesterday", "2026-01-31", "2026-01-31T12:00:00", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z",
    "2026-01-31T12:00:00 Mars/Phobos", "2026-01-31T12:00:00+99:99", FOLDED, 1790000000,
)  # fmt: skip
ODD_INSTANTS = (
    "2000-01-01T00:00:00+14:00", "2000-01-01T00:00:00Z", "2999-12-31T23:59:59Z", "2999-12-31T23:59:59-14:00",
    "2027-03-28T02:30:00+01:00", "2027-01-31T12:00:00.123456789Z",
)  # fmt: skip
ODD: dict[str, tuple[Any, ...]] = {
    "integer": (0, 1, -1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**80, -(2**80)),
    "boolean": (True, False),
    "string": (
        "", " ", "../../etc/passwd", "/etc/localtime", "localtime", "Factory", "Mars/Phobos", "CON", "\u202e", FOLDED,
    ),
    "array": ([], ["no-such"], ["gpu-01", "gpu-01"], ["../.."]),
}  # fmt: skip
PARAMETERS = (
    "", " ", "0", "-1", "1e3", "9" * 40, "NaN", "%00", "a%00b", "%ff", "%ED%A0%80", "x" * 500, "../../etc/passwd",
    "true", "None", "[]", "{}", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00",
    "2000-01-01T00:00:00%2B14:00", "2999-12-31T23:59:59-14:00", "2026-01-31T12:00:00", "2026-01-31", "%F0%9F%9A%80",
)  # fmt: skip
PLACES = ("0", "-1", "9" * 40, "%00", "%ff", "x" * 500, "..", "%2e%2e", "%F0%9F%9A%80", "1e3", "%D9%A3")


@pytest.fixture(scope="module")
def world(shared: Shared) -> World:
    return shared(build_world)


@pytest.fixture(scope="module")
def objects(world: World, shared: Shared) -> dict[str, str]:
    return shared(lambda: scene(world))


# A wrong password or code is counted and written down: that is what it is there for.
COUNTED = {
    "password/", "second-factor/", "second-factor/recovery-codes/", "second-factor/off/",
    "second-factor/passkeys/{passkey}/remove/",
}  # fmt: skip


def _called(openapi: Any, route: Route) -> Any:
    parts = route.path.split("/")
    for path, methods in openapi["paths"].items():
        described = path.removeprefix("/api/v1/").split("/")
        if len(described) == len(parts) and all(
            a == b or (a.startswith("{") and b.startswith("{")) for a, b in zip(described, parts, strict=True)
        ):
            return methods[route.method.lower()]
    raise AssertionError(f"{route} is not in the schema")


def _properties(openapi: Any, route: Route) -> dict[str, Any]:
    body = _called(openapi, route).get("requestBody")
    if body is None:
        return {}
    shape = body["content"]["application/json"]["schema"]
    name = shape.get("$ref", "").rpartition("/")[2]
    shape = openapi["components"]["schemas"][name] if name else shape
    return dict(shape.get("properties", {}))


def _fields(openapi: Any) -> Iterator[tuple[Route, str, dict[str, Any]]]:
    """Yield every field of every write, with its description."""
    for route in WRITES:
        for name, described in _properties(openapi, route).items():
            yield route, name, described


def _kind(openapi: Any, shape: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    for key in ("allOf", "oneOf"):
        if key in shape:
            shape = shape | shape[key][0]
    if "$ref" in shape:
        shape = shape | openapi["components"]["schemas"][shape["$ref"].rpartition("/")[2]]
    found = shape.get("type", "")
    kinds = [found] if isinstance(found, str) else found
    return next((kind for kind in kinds if kind != "null"), ""), shape


def _never(kind: str, shape: dict[str, Any]) -> Iterator[Any]:
    """Yield values that the field never takes."""
    takes_five = shape.get("items", {}).get("type") == "integer"
    yield from (value for value in NEVER.get(kind, ()) if not (takes_five and value == [5]))
    if shape.get("format") == "date-time":
        yield from NEVER_INSTANTS
    elif "enum" in shape:
        yield from ("nonsense", FOLDED)
    elif "maxLength" in shape:
        yield "x" * (shape["maxLength"] + 1)
    if "maximum" in shape:
        yield from (shape["maximum"] + 1, shape["minimum"] - 1)
    if kind and not shape.get("nullable") and "null" not in str(shape.get("type")):
        yield None


@pytest.mark.deep
def test_what_a_field_never_takes_is_refused_by_its_name(
    objects: dict[str, str], calls: Callable[..., Any], openapi: Any
) -> None:
    callers = {name: calls(name) for name in {route.who for route in WRITES}}
    before, tried, wrong = fingerprint(), 0, []

    for nth, (route, name, described) in enumerate(_fields(openapi)):
        for value in some(_never(*_kind(openapi, described)), nth):
            body = {**(route.body or {}), name: value}
            answer = callers[route.who].call(route.method, route.at(objects), body, **route.headers)
            tried += 1
            if answer.status_code != 422 or not _names(answer, name):
                wrong.append((route.method, route.path, name, str(value)[:40], answer.content[:200]))
    assert not wrong, "\n".join(str(one) for one in wrong)
    assert tried > 270
    assert fingerprint() == before


@pytest.mark.deep
def test_values_that_are_odd_are_taken_or_refused_but_never_break(
    objects: dict[str, str], calls: Callable[..., Any], openapi: Any
) -> None:
    callers = {name: calls(name) for name in {route.who for route in WRITES}}
    before, wrong = fingerprint(), []

    for nth, (route, name, described) in enumerate(_fields(openapi)):
        kind, shape = _kind(openapi, described)
        values = ODD_INSTANTS if shape.get("format") == "date-time" else ODD.get(kind, ())
        for value in some(values, nth):
            body = {**(route.body or {}), name: value}
            with transaction.atomic():
                answer = callers[route.who].call(route.method, route.at(objects), body, **route.headers)
                if answer.status_code >= 500:
                    wrong.append((route.method, route.path, name, str(value)[:40], answer.content[:200]))
                if answer.status_code == 422 and not _names_a_field(answer, openapi, route):
                    wrong.append((route.method, route.path, name, str(value)[:40], answer.content[:300]))
                is_counted = route.path in COUNTED
                if answer.status_code >= 400 and not is_counted and fingerprint() != before:
                    wrong.append((route.method, route.path, name, str(value)[:40], "changed something"))
                transaction.set_rollback(True)
    assert not wrong, "\n".join(str(one) for one in wrong)


@pytest.mark.deep
def test_parameters_of_every_list_take_nonsense_without_breaking(
    objects: dict[str, str], calls: Callable[..., Any], openapi: Any
) -> None:
    callers = {name: calls(name) for name in {route.who for route in ROUTES}}
    before, wrong = fingerprint(), []

    asked = (
        (route, parameter["name"])
        for route in ROUTES
        if route.method == "GET"
        for parameter in _called(openapi, route).get("parameters", ())
        if parameter["in"] == "query"
    )
    for nth, (route, name) in enumerate(asked):
        for value in some(PARAMETERS, nth):
            answer = callers[route.who].get(f"{route.at(objects)}?{name}={value}")
            if answer.status_code not in (200, 400, 404, 422):
                wrong.append((route.path, name, value, answer.status_code, answer.content[:200]))
            elif answer.status_code == 422 and not _names(answer, name):
                wrong.append((route.path, name, value, "not named", answer.content[:200]))
    assert not wrong, "\n".join(str(one) for one in wrong)
    assert fingerprint() == before


@pytest.mark.deep
def test_names_in_addresses_take_nonsense_without_breaking(
    objects: dict[str, str], calls: Callable[..., Any]
) -> None:
    callers = {name: calls(name) for name in {route.who for route in ROUTES}}
    before, wrong = fingerprint(), []

    for nth, route in enumerate(route for route in ROUTES if "{" in route.path):
        for place in some(PLACES, nth):
            path = route.path.format_map(dict.fromkeys(objects, place))
            with transaction.atomic():
                answer = callers[route.who].call(route.method, path, route.body, **route.headers)
                transaction.set_rollback(route.path in COUNTED)
            if not 400 <= answer.status_code < 500:
                wrong.append((route.method, path[:80], answer.status_code, answer.content[:200]))
    assert not wrong, "\n".join(str(one) for one in wrong)
    assert fingerprint() == before


def _names_a_field(answer: Any, openapi: Any, route: Route) -> bool:
    body = answer.json()
    fields = set(_properties(openapi, route))
    return body["code"] != "invalid" or all(
        error["field"].partition(".")[0].partition("[")[0] in fields for error in body["errors"]
    )


def _names(answer: Any, field: str) -> bool:
    return any(error["field"].partition(".")[0] == field for error in answer.json().get("errors", ()))


def test_a_quota_that_contradicts_itself_is_refused_by_the_fields_of_the_call(
    objects: dict[str, str], calls: Callable[..., Any]
) -> None:
    alice, path, before = calls("alice"), f"teams/{objects['team']}/quota/", fingerprint()
    wrong = ({"ceiling_milli": 1}, {"lending_milli": 10**9}, {"cohort_id": 999_999_999})

    for change in wrong:
        tag = alice.get(path)["ETag"]
        answer = alice.put(
            path, {"guaranteed_milli": 1000, "ceiling_milli": None, **change}, **{"If-Match": tag}
        )
        assert (answer.status_code, {e["field"] for e in answer.json()["errors"]}) == (422, set(change)), (
            change
        )
    assert fingerprint() == before
