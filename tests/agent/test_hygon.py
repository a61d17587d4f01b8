"""Hygon devices over an hy-smi that keeps its own state and prints as published outputs do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape
from nodeagent.drivers.errors import DriverUnavailableError, NotOfferedError, NvmlLikeError
from nodeagent.drivers.hygon.driver import HygonDriver
from nodeagent.drivers.kfd import NODES
from nodeagent.host.shell import Done
from nodeagent.protocol.codec import encode
from nodeagent.protocol.messages import Samples
from nodeagent.simulation.machine.world import SimulatedShell

DATA = Path(__file__).parent.parent / "data/vendors/hygon"
QUARTER = PartitionShape("memlimit", "", 0, 250, 16_384)
HALF = PartitionShape("memlimit", "", 0, 500, 16_384)
ONE, TWO = "DCU-71000000000000a1", "DCU-71000000000000b2"


class HySmi:
    """Two devices with 120 compute units; removes vDCUs only by the device, as documented."""

    def __init__(self) -> None:
        self.parts: dict[int, tuple[int, int, int]] = {}
        self.running = "No KFD PIDs currently running\n"
        self.devices = (DATA / "cards.json").read_text()
        self.changes: list[str] = []
        self.broken: dict[str, str] = {}
        self.files: dict[str, str] = {
            f"{NODES}/0/properties": "simd_count 0\ncpu_cores_count 64\n",
            f"{NODES}/1/properties": (
                "simd_count 480\ndomain 0\nlocation_id 1792\ndrm_render_minor 128\nunique_id 8142508126285856929\n"
            ),
            f"{NODES}/2/properties": "simd_count 480\ndomain 0\nlocation_id 2560\ndrm_render_minor 129\nunique_id 0\n",
        }

    def read(self, path: str) -> str:
        try:
            return self.files[path]
        except KeyError as no:
            raise OSError(path) from no

    def __call__(self, argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        words = list(argv[1:])
        if words[0] == "virtual":
            return self.virtual(words[1:])
        known = {"--version": "hy-smi 1.6.0\n", "-i": self.devices, "--showpids": self.running}
        known["--showbus"] = (DATA / "bus.json").read_text()
        return Done(0, self.broken.get(words[0], known[words[0]]))

    def virtual(self, words: list[str]) -> Done:
        if words[0] in self.broken:
            return Done(0, self.broken[words[0]])
        if words[0] == "-show-device-info":
            return Done(0, (DATA / "devices.txt").read_text())
        if words[0] == "-show-vdevice-info":
            return Done(0, "".join(self._part(n, *part) for n, part in self.parts.items()))
        self.changes.append(" ".join(words))
        device = int(words[words.index("-d") + 1])
        if "-destroy-vdevice" in words:
            self.parts = {n: part for n, part in self.parts.items() if part[0] != device}
            return Done(0, "done\n")
        units = int(words[words.index("-vdevice-compute-units") + 1])
        if sum(u for c, u, _ in self.parts.values() if c == device) + units > 120:
            return Done(1, "", "not enough compute units\n")
        free = next(n for n in range(16) if n not in self.parts)
        self.parts[free] = (device, units, int(words[words.index("-vdevice-memory-size") + 1]))
        self.files[f"/etc/vdev/vdev{free}.conf"] = "enable: 1\n"
        return Done(0, "The virtual device is created successfully!\n")

    @staticmethod
    def _part(number: int, device: int, units: int, mib: int) -> str:
        return (
            f"Virtual Device {number}:\n Actual Device: {device}\n Compute units: {units}\n"
            f" Global memory: {mib * 1024 * 1024} bytes\n"
        )


@pytest.fixture
def tool() -> HySmi:
    return HySmi()


def opened(tool: HySmi, folder: Path, *, can_bind: bool = True) -> HygonDriver:
    return HygonDriver("boot", SimulatedShell({"hy-smi": tool}), folder, tool.read, can_bind=can_bind)


def test_devices_are_listed_with_units_memory_and_place(tool, tmp_path):
    driver = opened(tool, tmp_path)

    one, two = driver.inventory()

    assert (one.uuid, two.uuid) == (ONE, TWO)
    assert (one.model, one.memory_mib, one.sm_count, one.serial) == ("K100_AI", 65_520, 120, "EXAMPLE0001")
    assert (one.pci_bus_id, one.max_clients) == ("0000:07:00.0", 4)
    assert [offer.shape.mode for offer in driver.catalogue(ONE)] == ["exclusive", "memlimit"]


def test_warnings_before_the_answer_are_left_out(tool, tmp_path):
    tool.devices = f"[WARN] driver is newer than tool\n[0] device busy\n{tool.devices}\n"

    assert len(opened(tool, tmp_path).inventory()) == 2


def test_runtime_that_shows_no_files_elsewhere_gets_whole_devices_only(tool, tmp_path):
    fact = opened(tool, tmp_path, can_bind=False).inventory()[0]

    assert fact.modes == ("exclusive",)
    assert "/etc/vdev/docker" in fact.refusals["memlimit"]
    assert "--runtime cdi" in fact.refusals["memlimit"]


def test_foreign_vdcu_is_seen_even_where_none_is_offered(tool, tmp_path):
    tool.parts[7] = (0, 10, 1024)
    driver = opened(tool, tmp_path, can_bind=False)

    assert [fact.uuid for fact in driver.observe(ONE)] == [f"{ONE}/vdcu7"]
    with pytest.raises(NvmlLikeError, match="not empty"):
        driver.create(ONE, PartitionShape("exclusive"), 0, "a")


def test_share_becomes_a_vdcu_with_units_and_memory(tool, tmp_path):
    driver = opened(tool, tmp_path)

    fact = driver.create(ONE, QUARTER, 0, "a")

    assert tool.parts == {0: (0, 30, 16_384)}
    assert driver.observe(ONE) == [fact]
    assert driver.observe(TWO) == []


def test_share_that_rounds_to_no_compute_unit_is_refused(tool, tmp_path):
    driver = opened(tool, tmp_path)

    with pytest.raises(NvmlLikeError) as no:
        driver.create(ONE, PartitionShape("memlimit", "", 0, 5, 1024), 0, "a")

    assert (no.value.code, tool.changes) == (errors.INVALID_ARGUMENT, [])


def test_holder_of_a_vdcu_sees_its_file_and_one_device(tool, tmp_path):
    driver = opened(tool, tmp_path)
    driver.create(ONE, QUARTER, 0, "a")
    second = driver.create(ONE, HALF, 0, "b").uuid

    way = driver.access(second)
    driver.confine(second, "/sys/fs/cgroup/berth/b")

    assert way.nodes == ("/dev/kfd", "/dev/mkfd", "/dev/dri/renderD128")
    assert way.binds == {"/etc/vdev/vdev1.conf": "/etc/vdev/docker/vdev1.conf"}
    assert way.env == {"ROCR_VISIBLE_DEVICES": "GPU-71000000000000a1"}


def test_vdcu_without_its_file_is_not_given_out_as_limited(tool, tmp_path):
    driver = opened(tool, tmp_path)
    part = driver.create(ONE, QUARTER, 0, "a").uuid
    del tool.files["/etc/vdev/vdev0.conf"]

    with pytest.raises(NotOfferedError, match="cannot be read"):
        driver.confine(part, "/sys/fs/cgroup/berth/a")


def test_device_whose_render_node_is_unknown_is_refused_and_not_guessed(tool, tmp_path):
    driver = opened(tool, tmp_path)
    driver.create(TWO, PartitionShape("exclusive"), 0, "a")
    assert driver.access(TWO).nodes[-1] == "/dev/dri/renderD129"

    del tool.files[f"{NODES}/2/properties"]

    with pytest.raises(NvmlLikeError, match="render node"):
        driver.access(TWO)


def test_vdcu_that_ends_first_is_set_aside_and_its_neighbour_is_left_alone(tool, tmp_path):
    driver = opened(tool, tmp_path)
    a, b = (driver.create(ONE, QUARTER, 0, owner).uuid for owner in "ab")

    driver.destroy(a)

    assert [fact.lease for fact in driver.observe(ONE)] == ["b"]
    assert len(tool.parts) == 2
    driver.destroy(b)
    assert (driver.observe(ONE), tool.parts) == ([], {})
    assert tool.changes[-1] == "-d 0 -destroy-vdevice"


def test_vdcu_set_aside_serves_the_next_lease_of_its_size(tool, tmp_path):
    driver = opened(tool, tmp_path)
    a, _ = (driver.create(ONE, QUARTER, 0, owner).uuid for owner in "ab")
    driver.destroy(a)

    fact = driver.create(ONE, QUARTER, 0, "c")

    assert (fact.lease, len(tool.parts)) == ("c", 2)
    assert fact.uuid != a
    assert driver.access(fact.uuid).binds.keys() in ({"/etc/vdev/vdev0.conf"}, {"/etc/vdev/vdev1.conf"})


def test_room_that_a_vdcu_set_aside_still_holds_is_explained(tool, tmp_path):
    driver = opened(tool, tmp_path)
    a, _ = (driver.create(ONE, HALF, 0, owner).uuid for owner in "ab")
    driver.destroy(a)

    with pytest.raises(NvmlLikeError, match="given back") as no:
        driver.create(ONE, QUARTER, 0, "c")

    assert no.value.code == errors.INSUFFICIENT_RESOURCES


def test_foreign_vdcu_is_never_destroyed_along_with_ours(tool, tmp_path):
    tool.parts[7] = (0, 10, 1024)
    driver = opened(tool, tmp_path)
    part = driver.create(ONE, QUARTER, 0, "a").uuid

    driver.destroy(part)

    assert 7 in tool.parts
    assert [fact.uuid for fact in driver.observe(ONE)] == [f"{ONE}/vdcu7"]


def test_limits_of_a_device_are_kept_before_the_tool_is_asked(tool, tmp_path):
    driver = opened(tool, tmp_path)
    driver.create(ONE, HALF, 0, "a")

    with pytest.raises(NvmlLikeError, match="not enough compute"):
        driver.create(ONE, PartitionShape("memlimit", "", 0, 600, 1024), 0, "b")
    with pytest.raises(NvmlLikeError, match="not enough memory"):
        driver.create(ONE, PartitionShape("memlimit", "", 0, 100, 60_000), 0, "b")

    assert len(tool.changes) == 1


def test_older_drivers_are_asked_through_hy_virtual(tool, tmp_path):
    def old(argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        return Done(2, "", "invalid choice: virtual") if argv[1] == "virtual" else tool(argv, stdin, env)

    def program(argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        return tool.virtual(list(argv[1:]))

    shell = SimulatedShell({"hy-smi": old, "hy-virtual": program})
    driver = HygonDriver("boot", shell, tmp_path, tool.read, can_bind=True)
    driver.create(ONE, QUARTER, 0, "a")

    assert len(tool.parts) == 1


def test_processes_are_those_of_the_device_and_memory_over_two_devices_is_unknown(tool, tmp_path):
    tool.running = (DATA / "pids.txt").read_text()
    driver = opened(tool, tmp_path)
    driver.create(ONE, PartitionShape("exclusive"), 0, "a")
    driver.create(TWO, PartitionShape("exclusive"), 0, "b")

    assert [(p.pid, p.memory_mib) for p in driver.processes(ONE)] == [(4711, 2046), (4712, None)]
    assert [p.pid for p in driver.processes(TWO)] == [4712]
    with pytest.raises(NvmlLikeError) as no:
        driver.destroy(TWO)
    assert no.value.code == errors.IN_USE


def test_figures_and_unknown_ones(tool, tmp_path):
    driver = opened(tool, tmp_path)
    driver.create(ONE, QUARTER, 0, "a")

    reading = driver.metrics()

    one, two = reading.devices
    assert (one.util_percent, one.memory_used_mib, one.power_w, one.temperature_c) == (
        12.0,
        2048,
        104.0,
        60.0,
    )
    assert (two.util_percent, two.power_w, two.temperature_c, two.source) == (None, None, None, "unavailable")
    assert [(p.util_percent, p.memory_mib, p.source) for p in reading.partitions] == [
        (None, 16_384, "unavailable")
    ]
    encode(Samples(1, "b", 1, reading.devices, ()))


def test_device_that_vanishes_is_critical_and_silence_is_a_warning(tool, tmp_path):
    driver = opened(tool, tmp_path)
    assert driver.health() == []

    tool.devices = tool.devices.replace("71000000000000b2", "71000000000000c3").replace("EXAMPLE0002", "X")
    assert {f.code for f in driver.health()} == {"tool_unreadable"}
    assert [(f.device, f.code, f.severity) for f in driver.health()] == [(TWO, "device_lost", "critical")]

    tool.devices = "segmentation fault"
    (fact,) = driver.health()
    assert (fact.code, "hy-smi (hy-smi 1.6.0)" in fact.detail) == ("tool_unreadable", True)


def test_missing_tool_is_one_sentence(tmp_path):
    with pytest.raises(DriverUnavailableError, match="hy-smi is not installed"):
        HygonDriver("boot", SimulatedShell(), tmp_path, lambda path: "")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    what=st.sampled_from(["-i", "--showbus", "--showpids", "-show-device-info", "-show-vdevice-info"]),
    text=st.one_of(st.text(), st.recursive(st.none(), lambda x: st.dictionaries(st.text(), x)).map(str)),
)
def test_garbled_output_is_refused_in_a_sentence_and_never_a_traceback(tmp_path, what, text):
    tool = HySmi()
    tool.broken[what] = text
    with suppress(DriverUnavailableError, NvmlLikeError, NotOfferedError):
        driver = opened(tool, tmp_path)
        driver.metrics()
        driver.health()
        driver.processes(driver.create(ONE, QUARTER, 0, "a").uuid)
