from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.drivers.nvml.telemetry.dcgm import NS, Dcgm, parse

PAGE = (Path(__file__).parents[1] / "data" / "dcgm" / "exporter.txt").read_text(encoding="utf-8")
URL = "http://localhost:9400/metrics"


class Exporter:
    """Answers with a page, or refuses; counts how often it was asked."""

    def __init__(self, page: str | None = PAGE) -> None:
        self.page, self.asked = page, 0

    def __call__(self, url: str) -> str:
        self.asked += 1
        if self.page is None:
            raise OSError("connection refused")
        return self.page


def test_slices_and_devices_are_told_apart_by_their_labels():
    found = parse(PAGE)

    assert found["GPU-a100", 1].util == pytest.approx(99.5687)
    assert found["GPU-a100", 1].sm == pytest.approx(81.2345)
    assert found["GPU-a100", 1].tensor == pytest.approx(70.0)
    assert found["GPU-a100", 1].bandwidth == pytest.approx(41.25)
    assert found["GPU-a100", None].util == pytest.approx(61.245)
    assert found["GPU-a100", 13].util == 0.0


def test_figures_that_are_no_ratio_are_not_believed():
    assert ("GPU-t4", None) not in parse(PAGE)


def test_page_of_something_else_has_no_activity():
    assert parse("<html>it works</html>") == {}
    assert parse("") == {}


def test_exporter_is_asked_once_a_second():
    exporter = Exporter()
    dcgm = Dcgm(URL, fetch=exporter)

    first = dcgm.read(10 * NS)
    again = dcgm.read(10 * NS + NS // 2)
    dcgm.read(11 * NS)

    assert first is again
    assert exporter.asked == 2


def test_absent_exporter_is_asked_less_and_less_and_welcomed_back():
    exporter = Exporter(None)
    dcgm = Dcgm(URL, fetch=exporter)

    for second in range(600):
        assert dcgm.read(second * NS) == {}

    assert exporter.asked < 20
    exporter.page = PAGE
    assert dcgm.read(700 * NS)["GPU-a100", 1].util is not None


def test_figures_of_an_exporter_that_went_away_are_not_repeated():
    exporter = Exporter()
    dcgm = Dcgm(URL, fetch=exporter)
    dcgm.read(0)

    exporter.page = None

    assert dcgm.read(NS) == {}


def test_garbled_page_counts_as_no_answer():
    dcgm = Dcgm(URL, fetch=lambda url: 'DCGM_FI_PROF_SM_ACTIVE{UUID="x",GPU_I_ID="one"} 0.5\n')

    assert dcgm.read(0) == {}


@pytest.mark.deep
@given(st.text(max_size=40), st.text(max_size=12))
def test_no_page_however_garbled_stops_the_measuring(labels, value):
    page = f'DCGM_FI_PROF_SM_ACTIVE{{UUID="GPU-1",{labels}}} {value}\n'

    found = Dcgm(URL, fetch=lambda url: page).read(0)

    assert all(one.sm is None or 0 <= one.sm <= 150 for one in found.values())


def test_address_that_is_no_web_page_is_refused():
    with pytest.raises(ValueError, match="http://localhost:9400"):
        Dcgm("file:///etc/passwd")


@pytest.fixture
def served() -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()
    server.server_close()


def test_exporter_is_read_over_http_without_a_proxy(served, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:1")

    assert Dcgm(served).read(0)["GPU-a100", 1].tensor == pytest.approx(70.0)
    assert Dcgm("http://127.0.0.1:1/metrics").read(0) == {}
