"""Nonsense in the forms and addresses of the pages around queue and time: never a 5xx, nothing changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import transaction

from tests.api.fingerprint import fingerprint
from tests.api.scene import scene
from tests.hostile.plenty import some
from tests.portal.builders import World, build_world
from tests.portal.shared import Shared

pytestmark = pytest.mark.django_db
INSTANTS = (
    "", "tomorrow", "0001-01-01T00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59",
    "9999-12-31T23:59:59-14:00", "2026-13-01T00:00", "2999-01-01T00:00", "1e9", "x" * 3000, "2027-01-01\x00",
)  # fmt: skip
TEXTS = ("", " ", "a\x00b", "x" * 5000, "\ufffd\u202e", "../../etc/passwd")
WHOLE = ("", "-1", "1.5", "1e9", "9" * 40, "NaN", "٣", "0x10", "true")
KINDS = {"at": INSTANTS, "day": INSTANTS, "text": TEXTS, "whole": WHOLE, "choice": (*TEXTS, *WHOLE)}
# Who may, where to, what would do, and what each field is.
FORMS: tuple[tuple[str, str, dict[str, Any], dict[str, str]], ...] = (
    (
        "bob",
        "/reservations/",
        {
            "team": "perception", "flavor": "h100", "count": "1", "starts_at": "2027-02-01T09:00",
            "zone": "Europe/Berlin", "duration": "2 h", "repeat": "weekly", "until": "", "name": "",
        },
        {
            "team": "choice", "flavor": "choice", "count": "whole", "starts_at": "at", "zone": "choice",
            "duration": "choice", "repeat": "choice", "until": "day", "name": "text",
        },
    ),
    (
        "operator",
        "/operations/maintenance/",
        {
            "nodes": "gpu-01", "starts_at": "2027-02-01T09:00", "ends_at": "2027-02-01T10:00",
            "reason": "fans", "confirmed": "yes",
        },
        {"nodes": "choice", "starts_at": "at", "ends_at": "at", "reason": "text"},
    ),
    (
        "operator",
        "/operations/maintenance/{window}/change/",
        {"starts_at": "2027-02-01T09:00", "ends_at": "2027-02-01T10:00"},
        {"starts_at": "at", "ends_at": "at"},
    ),
    (
        "alice",
        "/teams/{team}/priority/",
        {"steps": "10", "starts_at": "2027-02-01T09:00", "ends_at": "2027-02-02T10:00", "reason": "paper"},
        {"steps": "whole", "starts_at": "at", "ends_at": "at", "reason": "text"},
    ),
    ("operator", "/operations/cohorts/", {"name": "more"}, {"name": "text"}),
    ("operator", "/operations/cohorts/{cohort}/rename/", {"name": "more"}, {"name": "text"}),
    ("bob", "/requests/{queued}/growth/", {"most_count": "1"}, {"most_count": "whole"}),
    (
        "bob",
        "/requests/new/",
        {
            "team": "perception", "flavor": "h100", "count": "1", "duration": "2 h", "priority": "normal",
            "work": "training", "starts_at": "2027-01-01T09:00", "least": "1 h", "nodes": "1", "most_count": "2",
        },
        {
            "work": "choice", "starts_at": "at", "least": "choice", "nodes": "whole", "most_count": "whole",
            "count": "whole", "duration": "choice",
        },
    ),
)  # fmt: skip
ADDRESSES = (
    "/calendar/?on=0001-01-01", "/calendar/?on=9999-12-31", "/calendar/?on=%00", "/calendar/?view=month",
    "/calendar/?node=%00&team=%ED%A0%80&model=" + "x" * 3000, "/calendar/?page=" + "9" * 40, "/calendar/?page=-1",
    "/requests/new/?starts_at=0001-01-01T00:00:00%2B14:00", "/requests/new/?starts_at=9999-12-31T23:59:59-14:00",
    "/requests/new/?starts_at=%00&nodes=" + "9" * 40 + "&most_count=-1&work=%00&least=%00", "/requests/new/?count=%00",
    "/requests/quote/?flavor=h100&count=1&duration=2+h&starts_at=0001-01-01T00:00:00%2B14:00",
    "/requests/quote/?flavor=h100&count=1&duration=2+h&nodes=" + "9" * 40,
    "/reservations/?flavor=%00&count=" + "9" * 40 + "&name=" + "x" * 3000, "/forecasts/?week=%00",
    "/operations/policies/compare/?a=%00&b=" + "9" * 40, "/operations/policies/compare/", "/operations/policies/0/",
    "/operations/policies/" + "9" * 30 + "/", "/operations/policies/edit/?from=%00", "/reservations/%00/",
    "/operations/policies/json/?from=" + "9" * 40, "/operations/maintenance/%00/", "/teams/perception/?page=%00",
)  # fmt: skip
BODIES = (
    "", "[]", "null", "{", "7", '{"depth": 1e400}', '{"depth": ' + "9" * 5000 + "}", '{"depth": NaN}', "[" * 9000,
    '{"memory_factors": {"a\\u0000b": 1200}}', '{"memory_factors": {"\\ud800": 1200}}', '{"order": "\\u0000"}',
    '{"pools": {"zone": "../../etc/passwd"}}', '{"sleep": {"times": [{"days": [9]}]}}', '{"\\ud800": 1}', "x" * 200_000,
)  # fmt: skip


@pytest.fixture(scope="module")
def world(shared: Shared) -> World:
    return shared(build_world)


@pytest.fixture(scope="module")
def objects(world: World, shared: Shared) -> dict[str, str]:
    return shared(lambda: scene(world))


@pytest.mark.deep
@pytest.mark.parametrize("form", FORMS, ids=[path for _who, path, *_ in FORMS])
def test_a_field_with_nonsense_is_refused_or_taken_but_never_breaks(
    form: tuple[str, str, dict[str, Any], dict[str, str]], objects: dict[str, str], signed_in: Any
) -> None:
    who, path, sound, kinds = form
    browser = signed_in(who)
    before = fingerprint()

    for nth, (name, kind) in enumerate(kinds.items()):
        for value in some(KINDS[kind], nth):
            with transaction.atomic():
                answer = browser.post(path.format(**objects), {**sound, name: value})
                assert answer.status_code in (302, 400, 404, 409, 422), (name, value[:40], answer.status_code)
                assert answer.status_code == 302 or fingerprint() == before, (name, value[:40])
                transaction.set_rollback(True)


@pytest.mark.parametrize("who", ["bob", "operator"])
def test_addresses_with_nonsense_are_answered(who: str, objects: dict[str, str], signed_in: Any) -> None:
    browser, before = signed_in(who), fingerprint()

    for address in ADDRESSES:
        assert browser.get(address).status_code in (200, 302, 400, 403, 404, 422), address[:90]
    assert fingerprint() == before


def test_policies_that_are_nonsense_are_refused(objects: dict[str, str], signed_in: Any) -> None:
    operator, before = signed_in("operator"), fingerprint()

    for body in BODIES:
        sent = {"body": body, "name": "rules", "note": "", "based_on": "1"}
        for path in ("/operations/policies/json/", "/operations/policies/save/"):
            answer = operator.post(path, sent)
            assert answer.status_code in (302, 400, 413, 422), (path, body[:40], answer.status_code)
    for field, value in (("name", "a\x00b"), ("name", "x" * 500), ("note", "a\x00b"), ("based_on", "9" * 40)):
        sent = {"body": json.dumps({"depth": 7}), "name": "rules", "note": "", "based_on": "1", field: value}
        assert operator.post("/operations/policies/save/", sent).status_code in (409, 422), (
            field,
            value[:20],
        )
    rows = {"do": "review", "name": "rules", "based_on": "1", "pools.times.rows": "9999", "depth": "9" * 19}
    assert operator.post("/operations/policies/edit/", rows).status_code == 422
    assert fingerprint() == before
