"""Terminals of a node by its gateways: real sockets, real shells, simulated devices."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.server import serve

from nodeagent.host.clock import boot_clock
from nodeagent.link.address import AddressError, address_of, gateway_of
from nodeagent.link.agent import Agent
from nodeagent.link.enrolment import NodeEnrolment, token_source
from nodeagent.link.identity import Identity
from nodeagent.protocol.streams import MOST_PIECE, WINDOW, Kind
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.worker import Worker
from nodeagent.simulation.devices.driver import SimulatedDriver
from nodeagent.streams import service, terminals
from nodeagent.streams.gateways import Gateways
from nodeagent.streams.service import LeaseStreams
from nodeagent.workloads.entry import PlayedEntry
from tests.agent.builder import lease
from tests.agent.fake_gateway import FakeGateway
from tests.agent.fake_portal import FakePortal, listening, port_of
from tests.agent.test_agent import FACTS, running, slice_at

# The journal is looked at five times a second; the rest is patience with a busy machine.
SOON_S = 20
ANSWER = re.compile(rb"<([^\r\n<>]*)>\r\n")
MARK = "echo $((6*7))-$(stty size)-$(id -u)-$CUDA_VISIBLE_DEVICES-$BERTH_LEASE\n"


@asynccontextmanager
async def node(tmp_path: Path, *leases: str) -> AsyncIterator[tuple[FakePortal, FakeGateway]]:
    """Run an agent whose leases are ready, with one gateway."""
    portal = FakePortal()
    gateway = FakeGateway(portal)
    driver = SimulatedDriver(FACTS, tmp_path, "boot-1", clock=boot_clock)
    reconciler = Reconciler("gpu-01", driver, Journal(tmp_path / "journal.jsonl"), boot_clock())
    enrolment = NodeEnrolment(Identity("gpu-01", tmp_path), token_source("once", None))
    entry = PlayedEntry(tmp_path, reconciler.notice_of, boot_clock)
    async with listening(portal) as port, serve(gateway.serve_one, "127.0.0.1", 0) as server:
        portal.gateways = (f":{port_of(server)}/gw",)
        address = address_of(f"ws://127.0.0.1:{port}")
        streams = Gateways(address, enrolment.identity, lambda: LeaseStreams(entry, reconciler.ready))
        agent = Agent(address, enrolment, driver, Worker(reconciler, driver, boot_clock), streams=streams)
        async with running(agent):
            await gateway.connected()
            await portal.desire(*(lease(name, slice_at(n)) for n, name in enumerate(leases)))
            for name in leases:
                await portal.phase(name, "ready")
            yield portal, gateway


async def ask(gateway: FakeGateway, stream: int, command: str) -> str:
    """Run a command in a shell and return what it printed."""
    before = len(gateway.shown[stream])
    await gateway.type(stream, f"printf '\\074%s\\076\\n' \"$({command})\"\n")
    await gateway.until(lambda: ANSWER.search(gateway.shown[stream], before))
    return ANSWER.findall(gateway.shown[stream])[-1].decode()


async def test_shell_runs_in_the_lease_with_its_variables_and_never_as_root(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.open("a")
        await gateway.type(stream, MARK)
        shown = await gateway.shows(stream, "42-40 120-")

    assert gateway.paths == ["/gw/streams/v1/agent"]
    (uid, cuda, name) = re.findall(rb"42-40 120-(\d+)-(MIG-[^-]+[^\s]*)-(a)\r", shown)[0]
    assert int(uid) != 0
    assert cuda.startswith(b"MIG-")
    assert name == b"a"


async def test_resize_reaches_the_programs(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.open("a")
        gateway.streams.say(stream, {"op": "resize", "rows": 17, "columns": 61})
        await gateway.flush()

        assert await ask(gateway, stream, "stty size") == "17 61"


async def test_control_c_reaches_the_program_in_front(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.open("a")
        # A program that answers is in front. A shell that is just starting one has a moment in which it takes the
        # signal itself and goes on (dash, and bash as well; also on a bare pseudo-terminal).
        await gateway.type(stream, "cat -n\n")
        await gateway.type(stream, "here\n")
        await gateway.shows(stream, "1\there\r\n")
        await gateway.type(stream, "\x03")
        # Its next prompt: what is typed before that may be thrown away with the line.
        await gateway.until(lambda: b"$" in gateway.shown[stream].rpartition(b"here\r\n")[2])

        assert await ask(gateway, stream, "echo $?") == "130"


async def test_shell_that_exits_says_its_status_and_ends_its_stream(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.open("a")
        await gateway.type(stream, "exit 7\n")
        reset = await gateway.is_reset(stream)

    assert gateway.said(stream, Kind.CTL).body["status"] == 7
    assert reset["code"] == "exited"


@pytest.mark.parametrize(("name", "generation"), [("b", 1), ("a", 2), ("../a", 1), ("", 1)])
async def test_lease_that_is_not_open_here_gets_no_shell(tmp_path, name, generation):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.open(name, generation)

        assert (await gateway.is_reset(stream))["code"] in ("not_open_here", "bad_name")


async def test_released_lease_loses_its_streams_and_all_its_processes(tmp_path):
    async with node(tmp_path, "a", "b") as (portal, gateway):
        stream, other = await gateway.open("a"), await gateway.open("b")
        pid = int(await ask(gateway, stream, "setsid sleep 1000 >/dev/null 2>&1 & echo $!"))
        child = await ask(gateway, stream, "pgrep -n -f 'sleep 1000' || echo $!")
        await portal.desire(lease("b", slice_at(1)))
        async with asyncio.timeout(SOON_S):
            reset = await gateway.is_reset(stream)

        assert service.LOOK_EVERY_S <= 0.5
        assert reset["code"] == "lease_over"
        assert await ask(gateway, other, "echo well") == "well"
    for one in {pid, int(child) if child.isdigit() else pid}:
        assert not is_alive(one)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_flood_that_nobody_draws_stops_at_the_window_and_holds_up_nobody(tmp_path):
    async with node(tmp_path, "a") as (portal, gateway):
        gateway.is_drawing = False
        floods = [await gateway.open("a") for _ in range(5)]
        for stream in floods:
            await gateway.type(stream, "yes\n")
        await gateway.until(lambda: all(len(gateway.shown[s]) == WINDOW for s in floods))
        portal.forget()
        gateway.is_drawing = True
        quiet = await gateway.open("a")

        assert await ask(gateway, quiet, "echo still here") == "still here"
        await portal.desire(lease("a", slice_at(0)), lease("c", slice_at(3)))
        await portal.phase("c", "ready")
        assert {len(gateway.shown[stream]) for stream in floods} == {WINDOW}

        gateway.draw(floods[0])
        await gateway.flush()
        await gateway.until(lambda: len(gateway.shown[floods[0]]) > WINDOW)


async def test_gateway_that_dies_costs_no_shell_and_shows_what_was_there(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.open("a")
        terminal = gateway.said(stream, Kind.OPENED).body["terminal"]
        pid = await ask(gateway, stream, "echo $$")
        await gateway.type(stream, "seq 1 30000\n")
        await gateway.shows(stream, "\r\n30000\r\n")
        gateway.socket.transport.abort()
        await gateway.until(lambda: gateway.socket is None)
        gateway.shown.clear()
        gateway.events.clear()

        again = await gateway.open("a", terminal=terminal)
        shown = await gateway.shows(again, "\r\n30000\r\n")
        opened = gateway.said(again, Kind.OPENED).body

        assert opened == {"terminal": terminal, "is_former": True}
        assert WINDOW // 2 < len(shown) < WINDOW + 2 * MOST_PIECE
        assert await ask(gateway, again, "echo $$") == pid


@pytest.mark.deep
async def test_gateway_killed_with_fifty_terminals_costs_none_of_them(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        streams = [await gateway.open("a") for _ in range(50)]
        names = [gateway.said(stream, Kind.OPENED).body["terminal"] for stream in streams]
        for number, stream in enumerate(streams):
            await gateway.type(stream, f"printf '\\074number %d\\076\\n' {number}\n")
        for number, stream in enumerate(streams):
            await gateway.shows(stream, f"<number {number}>")
        gateway.socket.transport.abort()
        await gateway.until(lambda: gateway.socket is None)
        gateway.shown.clear()
        gateway.events.clear()

        for number, name in enumerate(names):
            stream = await gateway.open("a", terminal=name)
            assert gateway.said(stream, Kind.OPENED).body == {"terminal": name, "is_former": True}
            await gateway.shows(stream, f"<number {number}>")


async def test_terminal_opened_elsewhere_is_taken_over(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        first = await gateway.open("a")
        terminal = gateway.said(first, Kind.OPENED).body["terminal"]
        second = await gateway.open("a", terminal=terminal)

        assert (await gateway.is_reset(first))["code"] == "taken_over"
        assert await ask(gateway, second, "echo mine") == "mine"


async def test_terminal_of_another_lease_cannot_be_taken_over(tmp_path):
    async with node(tmp_path, "a", "b") as (_, gateway):
        first = await gateway.open("a")
        terminal = gateway.said(first, Kind.OPENED).body["terminal"]
        second = await gateway.open("b", terminal=terminal)

        assert gateway.said(second, Kind.OPENED).body["is_former"] is False
        assert await ask(gateway, second, "echo $BERTH_LEASE") == "b"


async def test_shell_that_nobody_comes_back_to_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(terminals, "KEPT_S", 0.3)
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.open("a")
        pid = int(await ask(gateway, stream, "echo $$"))
        gateway.streams.reset(stream, "away")
        await gateway.flush()
        async with asyncio.timeout(10):
            while is_alive(pid):
                await asyncio.sleep(0.05)


async def test_hung_up_shell_ends_at_once(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.open("a")
        pid = int(await ask(gateway, stream, "echo $$"))
        gateway.streams.say(stream, {"op": "hang_up"})
        await gateway.flush()
        await gateway.is_reset(stream)
        async with asyncio.timeout(10):
            while is_alive(pid):
                await asyncio.sleep(0.05)


async def test_agent_that_stops_leaves_no_shell(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.open("a")
        pid = int(await ask(gateway, stream, "echo $$"))
        assert is_alive(pid)

    assert not is_alive(pid)


HOSTILE = {
    "nonsense": b"\xff" * 40,
    "answer nobody asked for": struct.pack("!BI", Kind.OPENED, 2) + b"{}",
    "stream to come": struct.pack("!BI", Kind.DATA, 99) + b"x",
    "text": "hello",
}


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE.keys())
async def test_gateway_that_breaks_the_rules_is_left_and_dialled_anew(tmp_path, frame):
    async with node(tmp_path, "a") as (_, gateway):
        await gateway.socket.send(frame)
        await gateway.until(lambda: gateway.socket is None)
        stream = await gateway.open("a")

        assert await ask(gateway, stream, "echo fine") == "fine"


@pytest.mark.parametrize(
    "wish", [{"rows": 0}, {"columns": 100_000}, {"kind": "shell"}, {"terminal": "x"}, {"more": 1}]
)
async def test_wish_that_makes_no_sense_is_refused_and_the_socket_stays(tmp_path, wish):
    async with node(tmp_path, "a") as (_, gateway):
        stream = await gateway.open("a", **wish)
        await gateway.is_reset(stream)

        assert await ask(gateway, await gateway.open("a"), "echo fine") == "fine"
        assert len(gateway.hellos) == 1


async def test_gateway_without_the_portals_key_opens_nothing(tmp_path):
    async with node(tmp_path, "a") as (_, gateway):
        gateway.own_key = Ed25519PrivateKey.generate()
        gateway.socket.transport.abort()
        await gateway.until(lambda: len(gateway.hellos) >= 4)

        assert gateway.events == []


@pytest.mark.parametrize(
    ("portal", "told", "url"),
    [
        ("wss://berth.example/x", ":8443", "wss://berth.example:8443/streams/v1/agent"),
        ("wss://berth.example/x", "/gateway/1", "wss://berth.example/gateway/1/streams/v1/agent"),
        ("ws://[::1]:8000", ":8001", "ws://[::1]:8001/streams/v1/agent"),
        ("wss://berth.example", "wss://gw.example/a/", "wss://gw.example/a/streams/v1/agent"),
    ],
)
def test_gateway_is_found_from_the_portals_address(portal, told, url):
    assert gateway_of(address_of(portal), told).url == url


def test_gateway_elsewhere_is_not_dialled_without_encryption():
    with pytest.raises(AddressError):
        gateway_of(address_of("ws://127.0.0.1:8000"), "ws://gw.example")
