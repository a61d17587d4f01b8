"""The simulated host around NVML: files, identity, places, faults and scripts."""

from __future__ import annotations

import ctypes
import inspect
from collections import deque

import pynvml
import pytest

from nodeagent.simulation.faults import Faults
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.machine.proc import DEVICES, MIG_CONFIG, MIG_MINORS
from nodeagent.simulation.nvml import SimulatedNvml
from nodeagent.simulation.script import ScriptError, play
from tests.agent.nvml_bench import (
    FUNCTION_NOT_FOUND,
    G1,
    IN_USE,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNINITIALIZED,
    Bench,
    code_of,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    ("name", "minor"),
    [
        ("config", 1),
        ("monitor", 2),
        ("gpu0/gi0/access", 3),
        ("gpu0/gi0/ci0/access", 4),
        ("gpu0/gi1/access", 12),
        ("gpu4/gi7/ci0/access", 607),
        ("gpu31/gi14/ci7/access", 4322),
    ],
)
def test_capability_minors_are_those_of_the_vendors_list(bench, name, minor):
    lines = dict(line.split(" ") for line in bench.host.read(MIG_MINORS).splitlines())

    assert lines[name] == str(minor)


def test_files_of_a_process_live_as_long_as_it(bench):
    process = bench.host.world.spawn("/berth.slice/a.service", name="a-very-long-program-name")

    assert bench.host.read(f"/proc/{process.pid}/cgroup") == "0::/berth.slice/a.service\n"
    assert bench.host.read(f"/proc/{process.pid}/comm") == "a-very-long-pro\n"
    bench.host.world.signal(process.pid, kill=True)
    with pytest.raises(OSError, match=str(process.pid)):
        bench.host.read(f"/proc/{process.pid}/cgroup")


@pytest.mark.parametrize("path", [MIG_MINORS, DEVICES, MIG_CONFIG])
def test_hidden_file_is_not_there(bench, path):
    assert bench.host.read(path)
    bench.host.hidden.add(path)
    with pytest.raises(FileNotFoundError):
        bench.host.read(path)


def test_majors_of_the_drivers_nodes_are_listed(bench):
    names = {
        line.split()[1]: line.split()[0]
        for line in bench.host.read(DEVICES).splitlines()
        if line[:1] in " 0123456789" and len(line.split()) == 2
    }

    assert names["nvidiactl"] == "195"
    assert names["nvidia-caps"].isdigit()


def test_boot_has_another_identity_after_a_reboot(bench):
    before = bench.host.boot_id
    bench.host.reboot()

    assert bench.host.boot_id != before
    assert bench.host.read("/proc/sys/kernel/random/boot_id").strip() == bench.host.boot_id
    assert SimulatedHost(["l40s"], name="other").boot_id != SimulatedHost(["l40s"]).boot_id


def test_board_of_another_vendor_is_unknown_to_nvml():
    with pytest.raises(ValueError, match="no NVIDIA board"):
        SimulatedHost(["mi300x"])


def test_device_is_found_by_index_uuid_and_address():
    bench = Bench(mig=False, count=3)
    nvml, device = bench.nvml, bench.host.devices[2]
    handles = [
        nvml.nvmlDeviceGetHandleByIndex(2),
        nvml.nvmlDeviceGetHandleByUUID(device.uuid),
        nvml.nvmlDeviceGetHandleByUUID(device.uuid.encode()),
        nvml.nvmlDeviceGetHandleByPciBusId(device.bus_id),
        nvml.nvmlDeviceGetHandleByPciBusId(device.bus_id[4:].lower()),
    ]

    assert {nvml.nvmlDeviceGetMinorNumber(handle) for handle in handles} == {2}
    pci = nvml.nvmlDeviceGetPciInfo(handles[0])
    assert (pci.busId, pci.pciDeviceId & 0xFFFF, pci.pciDeviceId >> 16) == (device.bus_id, 0x10DE, 0x2330)
    assert nvml.nvmlDeviceGetCudaComputeCapability(handles[0]) == (9, 0)
    assert nvml.nvmlDeviceGetNumGpuCores(handles[0]) == 132 * 128
    assert nvml.nvmlDeviceGetArchitecture(handles[0]) == pynvml.NVML_DEVICE_ARCH_HOPPER
    assert code_of(nvml.nvmlDeviceGetHandleByUUID, "GPU-nobody") == NOT_FOUND
    assert code_of(nvml.nvmlDeviceGetHandleByIndex, 3) == INVALID_ARGUMENT


def test_eight_linked_devices_sit_in_pairs_and_two_sockets():
    bench = Bench(mig=False, count=8)
    nvml = bench.nvml
    devices = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(8)]

    near = [nvml.nvmlDeviceGetTopologyCommonAncestor(devices[0], other) for other in devices]

    assert near == [0, 10, 40, 40, 50, 50, 50, 50]
    assert [nvml.nvmlDeviceGetNumaNodeId(device) for device in devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert nvml.nvmlDeviceGetP2PStatus(devices[0], devices[7], pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0
    assert nvml.nvmlDeviceGetNvLinkState(devices[0], 17) == 1
    assert nvml.nvmlDeviceGetNvLinkRemotePciInfo(devices[0], 0).busId == bench.host.devices[1].bus_id
    assert list(nvml.nvmlDeviceGetCpuAffinity(devices[4], 1)) == [0xFFFFFFFF00000000]
    lone = Bench("l40s", mig=False)
    assert code_of(lone.nvml.nvmlDeviceGetNvLinkState, lone.gpu, 0) == NOT_SUPPORTED


def test_planned_codes_and_latency_hit_the_call_they_name():
    slept: list[float] = []
    name = "nvmlDeviceCreateGpuInstanceWithPlacement"
    faults = Faults(latency_s={name: 1.5}, refusals={name: deque([IN_USE, 999])})
    bench = Bench(faults=faults, sleep=slept.append)

    assert [code_of(bench.create, G1, 0), code_of(bench.create, G1, 0)] == [IN_USE, 999]
    assert bench.create(G1, 0)
    assert slept == [1.5, 1.5, 1.5]


def test_chance_of_in_use_hits_changes_only_and_alike_for_one_seed():
    def run(seed: int) -> list[int]:
        bench = Bench(faults=Faults(rate=0.5), seed=seed)
        codes = []
        for _ in range(30):
            bench.nvml.nvmlDeviceGetMigMode(bench.gpu)
            try:
                bench.nvml.nvmlDeviceSetComputeMode(bench.gpu, 0)
                codes.append(0)
            except pynvml.NVMLError as no:
                codes.append(int(no.value))
        return codes

    assert set(run(1)) == {0, IN_USE}
    assert run(1) == run(1) != run(2)


def test_agent_that_died_leaves_the_host_to_the_next_one(bench):
    bench.slice(G1, 4)
    bench.host.end_agent()
    assert code_of(bench.nvml.nvmlDeviceGetCount) == UNINITIALIZED
    assert code_of(bench.nvml.nvmlInit) == UNINITIALIZED

    bench.nvml = SimulatedNvml(bench.host)
    bench.nvml.nvmlInit()
    bench.gpu = bench.nvml.nvmlDeviceGetHandleByIndex(0)

    assert bench.listed(G1) == [4]
    assert bench.host.listeners == set()


def test_script_plays_its_steps_by_call_and_by_second(bench):
    events = bench.listen()
    play(
        bench.host,
        [
            {"at_call": 2, "do": "foreign", "gpu": 0, "profile": "1g.10gb", "start": 5, "is_half": True},
            {"at_call": 3, "do": "foreign", "gpu": 0, "profile": "2g.20gb", "start": 4},
            {"at_s": 1.0, "do": "process", "gpu": 0, "gi": 7, "name": "python"},
            {"at_s": 2, "do": "xid", "gpu": 0, "xid": 31, "gi": 7},
            {"at_s": 3, "do": "reboot"},
        ],
    )

    assert bench.listed(G1) == []
    assert bench.listed(G1) == [5]
    assert bench.host.refused[0].startswith("foreign: INSUFFICIENT_RESOURCES")
    bench.now_ns += 1_000_000_000
    bench.host.tick()
    assert [p.gi for p in bench.host.world.on(bench.host.devices[0].uuid)] == [7]
    bench.now_ns += 1_000_000_000
    assert bench.nvml.nvmlEventSetWait_v2(events, 0).eventData == 31
    bench.now_ns += 1_000_000_000
    assert code_of(bench.listed, G1) == INVALID_ARGUMENT
    assert bench.host.world.processes == {}


def test_script_comes_from_a_file_too(bench, tmp_path):
    path = tmp_path / "script.json"
    path.write_text('[{"at_s": 0, "do": "hold", "gpu": 0, "is_profiler": true}]')
    play(bench.host, path)

    assert code_of(bench.create, G1, 0) == IN_USE


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ([{"at_s": 1, "do": "explode"}], "step 1 wants to do 'explode'; known are"),
        ([{"do": "reboot"}], "needs exactly one of at_call and at_s"),
        ([{"at_s": 1, "at_call": 1, "do": "reboot"}], "needs exactly one of at_call and at_s"),
        ([{"at_call": 0, "do": "reboot"}], "at_call must be a whole number from 1"),
        ([{"at_s": float("nan"), "do": "reboot"}], "at_s must be a number of seconds"),
        ([{"at_s": 1, "do": "lose"}], "needs the field 'gpu'"),
        ([{"at_s": 1, "do": "lose", "gpu": 0, "why": "x"}], "has no field 'why'; it takes gpu"),
        ([{"at_s": 1, "do": "xid", "gpu": 0, "xid": "79"}], "xid must be of type int"),
        ([{"at_s": 1, "do": "lose", "gpu": 4}], "no device 4"),
        ([{"at_s": 1, "do": "foreign", "gpu": 0, "profile": "9g", "start": 0}], "no profile '9g'; it has 1g"),
        ([{"at_s": 1, "do": "latency", "call": "banana", "seconds": 3}], "'banana' is no call"),
        ([{"at_s": 1, "do": "latency", "call": "create", "seconds": -1}], "seconds from 0 to 600"),
        ([{"at_s": 1, "do": "latency", "call": "create", "seconds": True}], "seconds from 0 to 600"),
        ([{"at_s": 1, "do": "missing", "call": "nvmlDeviceFly"}], "'nvmlDeviceFly' is no call"),
        ([{"at_s": 1, "do": "refuse", "call": "create", "code": 0}], "code must be a whole number from 1"),
        (["reboot"], "step 1 must be an object"),
        ("{", "the script is no JSON"),
        ({"do": "reboot"}, "the script must be a list of steps"),
    ],
)
def test_script_with_a_mistake_is_refused_whole(bench, script, sentence):
    good = {"at_s": 0, "do": "lose", "gpu": 0}

    with pytest.raises(ScriptError, match=sentence):
        play(bench.host, [*script, good] if isinstance(script, list) else script)
    bench.host.tick()

    assert not bench.host.devices[0].gpu.is_lost


def test_script_slows_calls_down_lets_them_refuse_and_takes_them_away():
    slept: list[float] = []
    bench = Bench(sleep=slept.append)
    play(
        bench.host,
        [
            {"at_s": 0, "do": "latency", "call": "create", "seconds": 2},
            {"at_s": 0, "do": "refuse", "call": "create", "code": IN_USE, "times": 2},
            {"at_s": 0, "do": "missing", "call": "nvmlDeviceGetMigMode"},
            {"at_s": 1, "do": "missing", "call": "nvmlDeviceGetMigMode", "is_missing": False},
        ],
    )

    assert [code_of(bench.create, G1, 0) for _ in range(2)] == [IN_USE, IN_USE]
    assert bench.create(G1, 0)
    assert slept == [2, 2, 2]
    assert code_of(bench.nvml.nvmlDeviceGetMigMode, bench.gpu) == FUNCTION_NOT_FOUND
    bench.now_ns += 1_000_000_000
    assert bench.nvml.nvmlDeviceGetMigMode(bench.gpu)[0] == 1


def test_script_makes_a_device_a_guests():
    bench = Bench("a100-80gb", mig=False)
    play(
        bench.host,
        [
            {"at_s": 0, "do": "vgpu", "gpu": 0},
            {"at_s": 1, "do": "vgpu", "gpu": 0, "is_on": False},
            {"at_s": 1, "do": "passthrough", "gpu": 0},
        ],
    )

    mode = bench.nvml.nvmlDeviceGetVirtualizationMode
    assert mode(bench.gpu) == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU
    bench.now_ns += 1_000_000_000
    assert mode(bench.gpu) == pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH


def test_script_tells_what_the_device_did_not_take(bench, caplog):
    play(
        bench.host,
        [
            {"at_s": 0, "do": "foreign", "gpu": 0, "profile": "3g.40gb", "start": 1},
            {"at_s": 0, "do": "end_foreign", "gpu": 0, "start": 3},
            {"at_s": 0, "do": "process", "gpu": 0},
            {"at_s": 0, "do": "mig", "gpu": 0, "enabled": False},
        ],
    )
    bench.host.tick()

    assert [line.partition(":")[0] for line in bench.host.refused] == ["foreign", "end_foreign", "mig"]
    assert "cannot start at 1" in caplog.text
    assert "nothing starts at 3" in caplog.text
    assert "IN_USE" in caplog.text


def test_real_wrappers_and_simulated_ones_take_the_same_arguments():
    for name in dir(SimulatedNvml):
        real = getattr(pynvml, name, None)
        if not name.startswith("nvml") or real is None:
            continue
        theirs = list(inspect.signature(inspect.unwrap(real)).parameters.values())
        ours = list(inspect.signature(getattr(SimulatedNvml, name)).parameters.values())[1:]
        if any(p.kind is p.VAR_POSITIONAL for p in theirs):
            continue
        assert len(ours) == len(theirs), name
        assert [p.default is p.empty for p in ours] == [p.default is p.empty for p in theirs], name
    assert ctypes.sizeof(pynvml.c_nvmlGpuInstancePlacement_t) == 8
