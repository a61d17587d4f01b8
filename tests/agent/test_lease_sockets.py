"""Sockets of programs in leases and apps, by a node's gateways: real sockets, real processes, simulated devices."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.protocol.streams import WINDOW, Kind
from nodeagent.streams import apps
from nodeagent.workloads import dialer
from nodeagent.workloads.app_programs import AppPrograms
from nodeagent.workloads.entry import PlayedEntry
from tests.agent.fake_gateway import FakeGateway
from tests.agent.test_terminals import node

# Python of the host: a played holder may not reach the one that runs these tests.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
WHERE: list[str] = []
SERVER = """
import os, socket, sys
where, how = sys.argv[1:3]
if where.isdigit():
    s = socket.create_server(("127.0.0.1", int(where)))
else:
    s = socket.socket(socket.AF_UNIX); s.bind(where); s.listen(300)
if how == "crash":
    print("one\\ntwo\\nthree"); sys.exit(3)
while True:
    c, _ = s.accept()
    if os.fork():
        c.close(); continue
    if how == "http":
        c.recv(65536); c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok"); os._exit(0)
    if how == "flood":
        try:
            while True: c.sendall(bytes(65536))
        except OSError: os._exit(0)
    got = b""
    while data := c.recv(65536): got += data
    c.sendall(b"got %d " % len(got) + got[:5]); c.shutdown(socket.SHUT_WR); os._exit(0)
"""


@pytest.fixture(autouse=True, scope="module")
def server() -> Iterator[None]:
    """Lay the server where a played holder can read it."""
    with tempfile.NamedTemporaryFile("w", prefix="berth-test-", suffix=".py") as file:
        file.write(SERVER)
        file.flush()
        os.chmod(file.name, 0o644)
        WHERE.append(file.name)
        yield


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def app(how: str, **more: Any) -> dict[str, Any]:
    return {"app": "web", "command": [PYTHON, WHERE[-1], "{socket}", how], "socket": "web.sock", **more}


async def started(gateway: FakeGateway, how: str = "http", **more: Any) -> int:
    stream = await gateway.ask("app", "a", **{**app(how), **more})
    await gateway.until(lambda: any(word["state"] == "ready" for word in gateway.words(stream)))
    return stream


def states(gateway: FakeGateway, stream: int) -> list[str]:
    return [word["state"] for word in gateway.words(stream)]


async def test_app_is_started_as_the_holder_and_answers_by_its_socket(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        word = await started(gateway)
        stream = await gateway.ask("unix", "a", socket="web.sock")
        await gateway.type(stream, "GET / HTTP/1.0\r\n\r\n")
        shown = await gateway.shows(stream, "ok")

        assert states(gateway, word)[0] == "starting"
        assert shown.startswith(b"HTTP/1.1 200 OK")


async def test_direction_that_ends_leaves_the_other_open(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        await gateway.ask("app", "a", **app("echo", ready_path="/x"))
        stream = await dialled(gateway)
        await gateway.type(stream, "hello there")
        gateway.streams.end(stream)
        await gateway.flush()
        await gateway.shows(stream, "got 11 hello")
        await gateway.until(lambda: gateway.said(stream, Kind.EOF))

        assert stream not in gateway.streams.streams


async def dialled(gateway: FakeGateway, **more: Any) -> int:
    """Return a stream to the socket of an app that may only just be coming up."""
    async with asyncio.timeout(20):
        while True:
            stream = await gateway.ask("unix", "a", **{"socket": "web.sock", **more})
            if gateway.said(stream, Kind.OPENED):
                return stream
            await asyncio.sleep(0.05)


async def test_port_of_the_leases_own_account_is_reached_and_nobody_elses(tmp_path):
    port = free_port()
    async with node(tmp_path, "a") as (_, gateway):
        await started(gateway, command=[PYTHON, WHERE[-1], "{port}", "http"], socket="", port=port)
        mine = await gateway.ask("tcp", "a", port=port)
        await gateway.type(mine, "GET / HTTP/1.0\r\n\r\n")
        await gateway.shows(mine, "ok")
        nothing = await gateway.ask("tcp", "a", port=free_port())

        assert (await gateway.is_reset(nothing))["code"] == "refused"
        if os.geteuid() == 0:
            with socket.create_server(("127.0.0.1", 0)) as roots:
                stream = await gateway.ask("tcp", "a", port=roots.getsockname()[1])
                assert (await gateway.is_reset(stream))["code"] == "not_yours"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could follow the link")
async def test_link_in_a_sockets_place_leads_nowhere_that_its_holder_could_not_go(tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    async with node(tmp_path, "a") as (_, gateway):
        with socket.socket(socket.AF_UNIX) as roots:
            roots.bind(str(hidden / "s"))
            roots.listen()
            shell = await gateway.open("a")
            await started(gateway)
            path = f"ln -s {hidden}/s $(ls -d /tmp/berth-run-*/a-1 | tail -1)/evil.sock; echo d''one\n"
            await gateway.type(shell, path)
            await gateway.shows(shell, "done")
            stream = await gateway.ask("unix", "a", socket="evil.sock")

            assert gateway.said(stream, Kind.RESET)


async def test_flood_of_a_socket_that_nobody_draws_stops_at_the_window(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        await gateway.ask("app", "a", **app("flood", ready_path="/x"))
        gateway.is_drawing = False
        stream = await dialled(gateway)
        await gateway.until(lambda: gateway.held[stream] >= WINDOW)
        other = await gateway.open("a")
        await gateway.type(other, "echo still-$((40+2))\n")
        gateway.is_drawing = True
        await gateway.shows(other, "still-42")

        assert gateway.held[stream] == WINDOW


async def test_lease_that_is_released_loses_its_sockets_and_its_apps(tmp_path):
    async with node(tmp_path, "a") as (portal, gateway):
        word = await started(gateway)
        stream = await dialled(gateway)
        folder = next(Path("/tmp").glob("berth-run-*/a-1/web.sock"))

        await portal.desire()

        ends = [await gateway.is_reset(one) for one in (word, stream)]
        async with asyncio.timeout(20):
            while folder.exists():
                await asyncio.sleep(0.02)
        assert [end["code"] for end in ends] == ["lease_over", "lease_over"]


async def test_failed_start_shows_what_was_said_last_and_can_be_tried_again(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.ask("app", "a", **app("crash"))
        await gateway.until(lambda: "failed" in states(gateway, stream))
        await started(gateway, restart=True)

        word = next(word for word in gateway.words(stream) if word["state"] == "failed")
        assert word["detail"] == "it ended with status 3"
        assert gateway.shown[stream].splitlines()[-1] == b"three"
        assert states(gateway, stream)[-1] == "ready"


async def test_program_that_is_not_there_is_named(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.ask("app", "a", **app("http", command=["no-such-program"]))
        await gateway.until(lambda: "failed" in states(gateway, stream))

        assert b"no-such-program" in gateway.shown[stream]


async def test_app_that_ends_says_so_to_whoever_watches(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        word = await started(gateway)
        shell = await gateway.open("a")
        await gateway.type(shell, "pkill -f -u $(id -u) web.sock\n")
        await gateway.until(lambda: "ended" in states(gateway, word))


async def test_second_gateway_finds_the_app_running(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        await started(gateway)
        again = await gateway.ask("app", "a", **app("http"))
        await gateway.until(lambda: states(gateway, again))

        assert states(gateway, again) == ["ready"]


@pytest.mark.parametrize(
    ("kind", "wish"),
    [
        ("unix", {"socket": "../../etc/x"}),
        ("unix", {"socket": ""}),
        ("tcp", {"port": 0}),
        ("tcp", {"port": 70_000}),
        ("app", {"app": "a--b", "command": ["x"], "port": 1}),
        ("app", {"app": "web", "command": [], "port": 1}),
        ("app", {"app": "web", "command": ["x"], "port": 1, "ready_path": "/ HTTP/1.1"}),
        ("nonsense", {}),
    ],
)
async def test_wish_that_makes_no_sense_is_refused_and_the_socket_stays(tmp_path, kind, wish):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.ask(kind, "a", **wish)

        assert gateway.said(stream, Kind.RESET)
        assert gateway.socket is not None


async def test_lease_of_another_generation_has_no_sockets(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.ask("tcp", "a", generation=2, port=80)

        assert (await gateway.is_reset(stream))["code"] == "not_open_here"


def test_dialer_hands_over_only_what_it_opened(tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        made = dialer.open_socket(str(tmp_path / "s"), 0)

        assert stat.S_ISSOCK(os.fstat(made.fileno()).st_mode)
        made.close()


def test_programs_are_installed_only_where_there_is_an_installer(tmp_path):
    assert not AppPrograms(str(tmp_path)).lacks(["jupyter"])
    assert AppPrograms(str(tmp_path), ["true"]).lacks(["jupyter"])


async def test_installation_is_told_line_by_line_and_its_failure_shown(tmp_path, monkeypatch):
    programs = AppPrograms(str(tmp_path), ["/bin/sh", "-c", "echo getting $0; exit 1"])
    told: list[str] = []

    with pytest.raises(apps.InstallFailedError) as failed:
        await programs.install("jupyterlab", ["jupyter"], told.append)

    assert told == ["getting jupyterlab"]
    assert failed.value.lines == ["getting jupyterlab"]


def test_app_and_who_opens_it_are_given_one_folder(tmp_path, monkeypatch):
    entry = PlayedEntry(tmp_path, lambda record: tmp_path, lambda: 0)
    record: Any = SimpleNamespace(key=("a", 1))
    made = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **how: (time.sleep(0.01), made(**how))[1])
    with ThreadPoolExecutor(4) as threads:
        folders = set(threads.map(lambda _n: entry.run_folder(record), range(4)))
    entry.close()

    assert len(folders) == 1
