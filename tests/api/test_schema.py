from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from portal.api import errors as _http_errors  # noqa: F401 (their codes join the catalogue)
from portal.common.errors import catalogue

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_schema_is_valid_and_complete() -> None:
    out = StringIO()

    call_command("spectacular", validate=True, fail_on_warn=True, format="openapi-json", stdout=out)

    assert '"openapi": "3.1.0"' in out.getvalue()


def test_every_call_has_a_name_of_its_own(openapi: Any) -> None:
    names = [call["operationId"] for path in openapi["paths"].values() for call in path.values()]

    assert len(names) == len(set(names))
    assert {"list_requests", "ask_for_gpu_time", "release_a_lease"} <= set(names)


@pytest.mark.django_db
def test_schema_and_its_browser_are_served_without_signing_in(client: Client) -> None:
    schema, browser = client.get("/api/schema/"), client.get("/api/docs/")

    assert schema.status_code == 200
    assert b"swagger-ui" in browser.content
    assert b"//cdn" not in browser.content


def test_documented_error_codes_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", (DOCS / "errors.md").read_text(), re.MULTILINE)

    assert dict(rows) == {code: str(kind.status) for code, kind in catalogue().items() if code != "error"}
    assert [code for code, _status in rows] == sorted(code for code, _status in rows)


def test_documented_calls_are_those_of_the_schema(openapi: Any) -> None:
    text = (DOCS / "api.md").read_text()
    listed = set(re.findall(r"^\| `(GET|POST|PUT|DELETE) (/[^`]*)` \|", text, re.MULTILINE))

    assert listed == {
        (method.upper(), path.removeprefix("/api/v1"))
        for path, calls in openapi["paths"].items()
        for method in calls
        if path.startswith("/api/v1")
    }
