"""Log lines carry the ids of what they are about, and traces begin only where they are wanted."""

from __future__ import annotations

import json
import logging

import pytest
from django.test import Client

from nodeagent.host.log_lines import JsonLines
from portal import tracing
from portal.common.logs import JsonFormatter, about, note_ids

LEASE, REQUEST = "lse-0123456789abcdef", "req-0123456789abcdef"


def record(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("portal", logging.INFO, __file__, 1, text, args, None)


def test_a_line_names_request_lease_and_node() -> None:
    with about(node="gpu-01"):
        inside = json.loads(JsonFormatter().format(record("lease %s of %s\nended", LEASE, REQUEST)))
    outside = json.loads(JsonFormatter().format(record("nothing named, not even lse-1")))

    assert (inside["lease"], inside["lease_request"], inside["node"]) == (LEASE, REQUEST, "gpu-01")
    assert {"lease", "node"}.isdisjoint(outside)
    assert json.loads(JsonLines("gpu-02").format(record("lease %s", LEASE)))["node"] == "gpu-02"


@pytest.mark.django_db
def test_lines_of_a_request_name_what_its_address_names(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []

    def view(_request: object) -> None:
        lines.append(json.loads(JsonFormatter().format(record("looked"))))

    monkeypatch.setattr(
        "portal.common.middleware.ErrorsForPeople.__call__", lambda _self, request: view(request)
    )
    with pytest.raises(AttributeError):
        client.get(f"/leases/{LEASE}/")

    assert lines[0]["lease"] == LEASE
    assert lines[0]["request_id"]
    assert "lease" not in json.loads(JsonFormatter().format(record("later")))


def test_ids_noted_in_a_task_stay_until_its_end() -> None:
    with about():
        note_ids(node="gpu-03")
        assert json.loads(JsonFormatter().format(record("heard")))["node"] == "gpu-03"
    assert "node" not in json.loads(JsonFormatter().format(record("heard")))


def test_traces_need_an_endpoint_and_the_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(tracing, "import_module", absent)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert not tracing.start_tracing("berth-web")
    assert caplog.text == ""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert not tracing.start_tracing("berth-web")
    assert "berth[otel]" in caplog.text
