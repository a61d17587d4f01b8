"""What the suites for real devices are made with: finding a device, holding it, keeping what it said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.nvml import SimulatedNvml
from tests.gpu import devices, hold_cuda, holders
from tests.gpu.devices import NoDeviceError, chosen, simulated
from tests.gpu.hold_cuda import MIB, serve
from tests.gpu.holders import OUT_OF_MEMORY, NoHolderError, real_holder
from tests.gpu.record import Recorder


def test_a_device_is_chosen_by_index_or_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = SimulatedHost(["a30-24gb", "h100-80gb"])
    monkeypatch.setattr(devices, "pynvml", SimulatedNvml(host))

    assert devices.real(tmp_path, "1").uuid == host.devices[1].uuid
    assert devices.real(tmp_path, host.devices[1].uuid).uuid == host.devices[1].uuid
    assert devices.real(tmp_path).uuid == host.devices[0].uuid
    with pytest.raises(NoDeviceError, match=r"no device 7; this host has 0 \(GPU-.*\), 1 \(GPU-"):
        devices.real(tmp_path, "7")


def test_devices_that_hide_their_memory_from_this_account_are_no_failure() -> None:
    with pytest.raises(NoDeviceError, match="needs root"):
        chosen([], "")


class Cuda:
    """The calls of the CUDA driver that the holder makes; ``fails`` names one that answers 100."""

    def __init__(self, fails: str = "", room_mib: int = 1024) -> None:
        self._fails, self._room = fails, room_mib * 1024 * 1024

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name == "cuMemAlloc_v2":
            return self._give
        return lambda *args: 100 if name == self._fails else 0

    def _give(self, address: Any, size: Any) -> int:
        if size.value > self._room:
            return OUT_OF_MEMORY
        self._room -= size.value
        return 0


def test_the_program_on_a_device_takes_memory_as_told() -> None:
    said: list[str] = []

    serve(Cuda(room_mib=300), ["take 256\n", "take 4096\n"], said.append)

    assert said == ["ready", "0", str(OUT_OF_MEMORY)]


class Memory:
    """A CUDA driver with two pieces of memory, each of which holds what was written last."""

    def __init__(self) -> None:
        self.pieces: dict[int, int] = {}
        self.taken = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_args: 0

    def cuMemAlloc_v2(self, address: Any, _size: Any) -> int:  # noqa: N802 - CUDA's name
        if self.taken == 2:
            return OUT_OF_MEMORY
        self.taken += 1
        address._obj.value = self.taken
        return 0

    def cuMemsetD32_v2(self, piece: Any, word: Any, _words: Any) -> int:  # noqa: N802 - CUDA's name
        self.pieces[piece.value] = word.value
        return 0

    def cuMemcpyDtoH_v2(self, data: Any, piece: Any, size: Any) -> int:  # noqa: N802 - CUDA's name
        word = self.pieces.get(piece.value, 0).to_bytes(4, "little")
        data.raw = word * (size.value // 4)
        return 0


def test_the_program_on_a_device_finds_what_stands_in_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_cuda, "PIECE", MIB)
    said: list[str] = []
    cuda = Memory()

    for line in ("fill 7", "find 7", "find 8"):
        cuda.taken = 0
        serve(cuda, [line], said.append)

    words = 2 * MIB // 4
    assert said[1::2] == [f"2 {words}", f"2 {words}", "2 0"]


def test_the_program_on_a_device_says_why_it_cannot_open_it() -> None:
    said: list[str] = []

    serve(Cuda("cuDevicePrimaryCtxRetain"), ["take 1"], said.append)

    assert said == ["no program can open this device: cuDevicePrimaryCtxRetain answers 100"]


HOLDER = """
import sys
print("ready" if sys.argv[1:] == ["/sys/fs/cgroup/mine"] else "no program can open this device", flush=True)
for line in sys.stdin:
    print(2 if line == "take 4096\\n" else 0, flush=True)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in the place of the one that needs CUDA, on a host whose pids are its own."""
    path = tmp_path / "hold.py"
    path.write_text(HOLDER, encoding="utf-8")
    monkeypatch.setattr(holders, "PROGRAM", path)
    monkeypatch.setattr(holders, "HOST_PIDS", os.readlink("/proc/self/ns/pid"))


@pytest.mark.usefixtures("program")
def test_a_program_is_started_in_its_cgroup_obeys_and_is_gone_afterwards() -> None:
    with real_holder("GPU-1", "/sys/fs/cgroup/mine") as holder:
        assert [holder.take(256), holder.take(4096)] == [0, OUT_OF_MEMORY]
        assert Path(f"/proc/{holder.pid}").exists()

    assert not Path(f"/proc/{holder.pid}").exists()


@pytest.mark.usefixtures("program")
def test_a_program_that_cannot_open_the_device_says_why() -> None:
    with pytest.raises(NoHolderError, match="no program can open this device"), real_holder("GPU-1"):
        pass


@pytest.mark.usefixtures("program")
def test_nothing_is_started_where_pids_are_not_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "HOST_PIDS", "pid:[1]")

    with pytest.raises(NoHolderError, match="run it on the host"), real_holder("GPU-1"):
        pass


def test_a_record_has_what_the_device_said_and_how_each_test_ended(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    recorder = Recorder(path)
    device = simulated(tmp_path)
    recorder.take(device)
    device.notes["context_mib"] = 450
    recorder.note(device)

    def end(test: str, outcome: Any, why: Any = None, when: Any = "call") -> None:
        node = f"tests/gpu/test_reading.py::{test}"
        recorder.pytest_runtest_logreport(pytest.TestReport(node, (node, 1, ""), {}, outcome, why, when))

    end("test_memory[real]", "passed", when="setup")
    end("test_memory[real]", "passed")
    end("test_events[real]", "skipped", ("file", 1, "Skipped: not on this device"), "setup")
    end("test_places[real]", "failed", f"they differ on {device.uuid}")
    end("test_places[real]", "passed", when="teardown")
    end("test_places[h100-80gb]", "passed")

    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["card"]["name"] == "NVIDIA H100 80GB HBM3"
    assert document["card"]["profiles"][0]["placements"]
    assert document["found"] == {"context_mib": 450}
    assert document["tests"] == {
        "test_memory": {"outcome": "passed", "why": ""},
        "test_events": {"outcome": "skipped", "why": "not on this device"},
        "test_places": {"outcome": "failed", "why": "they differ on GPU"},
    }
    assert device.uuid not in path.read_text(encoding="utf-8")
