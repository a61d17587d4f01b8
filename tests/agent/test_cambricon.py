"""Cambricon devices over a cnmon and a CNDEV library that keep their own state."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape
from nodeagent.drivers.cambricon import cndev
from nodeagent.drivers.cambricon.driver import CambriconDriver
from nodeagent.drivers.errors import DriverUnavailableError, NotOfferedError, NvmlLikeError
from nodeagent.host.shell import Done
from nodeagent.protocol.codec import encode
from nodeagent.protocol.messages import Samples
from nodeagent.simulation.machine.world import SimulatedShell

DATA = Path(__file__).parent.parent / "data/vendors/cambricon/cnmon_info.json"
QUARTER = PartitionShape("memlimit", "", 0, 250, 6_144)
ONE, TWO = (f"MLU-20001012-1916-0000-0000-00000000000{n}" for n in (1, 2))
MIB = 1024 * 1024


class Library:
    """libcndev.so for two devices; arguments arrive as ctypes hands them over."""

    def __init__(self) -> None:
        self.smlu, self.mim = {0: 1, 1: 1}, {0: 0, 1: 0}
        self.profiles: dict[int, dict[int, tuple[int, int]]] = {0: {}, 1: {}}
        self.parts: dict[int, dict[str, int]] = {0: {}, 1: {}}
        self.running: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
        self.refuses = 0
        self.made_profiles = 0

    def cndevInit(self, reserved: Any) -> int:  # noqa: N802 - names of the library
        return 0

    def cndevGetErrorString(self, code: Any) -> bytes:  # noqa: N802
        return b"CNDEV_ERROR_NO_PERMISSION" if code.value == 7 else b"CNDEV_ERROR_UNKNOWN"

    def cndevGetDeviceHandleByIndex(self, index: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = 1000 + index.value
        return 0

    def cndevGetSMLUMode(self, mode: Any, handle: Any) -> int:  # noqa: N802
        mode._obj.mode = self.smlu[handle.value - 1000]
        return 0

    def cndevGetMimMode(self, mode: Any, handle: Any) -> int:  # noqa: N802
        mode._obj.mode = self.mim[handle.value - 1000]
        return 0

    def cndevGetSMluProfileIdInfo(self, ids: Any, handle: Any) -> int:  # noqa: N802
        known = sorted(self.profiles[handle.value - 1000])
        ids._obj.count = len(known)
        for at, number in enumerate(known):
            ids._obj.ids[at] = number
        return 0

    def cndevGetSMluProfileInfo(self, info: Any, number: Any, handle: Any) -> int:  # noqa: N802
        quota, memory = self.profiles[handle.value - 1000][number.value]
        info._obj.quota[0], info._obj.memory[0], info._obj.left = quota, memory, 8
        return 0

    def cndevCreateSMluProfileInfo(self, wanted: Any, number: Any, handle: Any) -> int:  # noqa: N802
        if self.refuses:
            return self.refuses
        assert wanted._obj.version == cndev.API
        known = self.profiles[handle.value - 1000]
        known[len(known)] = (wanted._obj.quota, wanted._obj.memory)
        number._obj.value = len(known) - 1
        self.made_profiles += 1
        return 0

    def cndevCreateSMluInstanceByProfileId(self, made: Any, profile: Any, handle: Any, name: Any) -> int:  # noqa: N802
        self.parts[handle.value - 1000][name.value.decode()] = profile.value
        return 0

    def cndevDestroySMluInstanceByInstanceName(self, handle: Any, name: Any) -> int:  # noqa: N802
        del self.parts[handle.value - 1000][name.value.decode()]
        return 0

    def cndevGetAllSMluInstanceInfo(self, count: Any, rows: Any, handle: Any) -> int:  # noqa: N802
        device = handle.value - 1000
        for row, (at, (name, profile)) in zip(rows, enumerate(self.parts[device].items()), strict=False):
            assert row.version == cndev.API
            row.name, row.instance_id = name.encode(), at
            row.node = f"/dev/cambricon-caps/cap_dev{device}_mi{at + 1}".encode()
            row.quota[0], row.memory[0] = self.profiles[device][profile]
        count._obj.value = len(self.parts[device])
        return 0

    def cndevGetProcessInfo(self, count: Any, rows: Any, handle: Any) -> int:  # noqa: N802
        listed = self.running[handle.value - 1000]
        for row, (pid, kib) in zip(rows, listed, strict=False):
            row.pid, row.physical_kib = pid, kib
        count._obj.value = len(listed)
        return 0


class Cnmon:
    """Writes its JSON into the working directory that it is started in, as cnmon does."""

    def __init__(self) -> None:
        self.text = DATA.read_text()
        self.files: dict[str, str] = {}

    def __call__(self, argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        words = list(argv)
        if words == ["cnmon", "version"]:
            return Done(0, "cnmon: 5.10.27\ndriver: 5.10.27\n")
        assert (words[:2], words[3:]) == (["env", "-C"], ["cnmon", "info", "-j"])
        self.files[f"{words[2]}/cnmon_info.json"] = self.text
        return Done(0, "saved\n")

    def read(self, path: str) -> str:
        try:
            return self.files[path]
        except KeyError as no:
            raise OSError(path) from no


@pytest.fixture
def tool() -> Cnmon:
    return Cnmon()


@pytest.fixture
def library() -> Library:
    return Library()


def opened(tool: Cnmon, library: Library, folder: Path) -> CambriconDriver:
    shell = SimulatedShell({"cnmon": tool, "env": tool})
    return CambriconDriver("boot", shell, folder, tool.read, library=library)


def test_devices_are_listed_with_memory_and_place(tool, library, tmp_path):
    one, two = opened(tool, library, tmp_path).inventory()

    assert (one.uuid, two.uuid) == (ONE, TWO)
    assert (one.model, one.memory_mib, one.pci_bus_id) == ("mlu370-x8-48gb", 24_576, "0000:4f:00.0")
    assert (one.modes, one.refusals) == (("exclusive", "memlimit"), {})


def test_share_becomes_an_instance_and_equal_shares_use_one_profile(tool, library, tmp_path):
    driver = opened(tool, library, tmp_path)

    a = driver.create(ONE, QUARTER, 0, "a")
    b = driver.create(ONE, QUARTER, 0, "b")

    assert library.profiles[0] == {0: (25, 6_144 * MIB)}
    assert (len(library.parts[0]), library.made_profiles) == (2, 1)
    assert driver.observe(ONE) == sorted((a, b), key=lambda fact: fact.uuid)
    driver.destroy(a.uuid)
    assert ([fact.lease for fact in driver.observe(ONE)], len(library.parts[0])) == (["b"], 1)


def test_memory_is_rounded_up_to_units_of_256(tool, library, tmp_path):
    driver = opened(tool, library, tmp_path)

    driver.create(ONE, PartitionShape("memlimit", "", 0, 100, 1_000), 0, "a")

    assert library.profiles[0][0] == (10, 1_024 * MIB)


@pytest.mark.parametrize(
    "shape", [PartitionShape("memlimit", "", 0, 125, 1_024), PartitionShape("memlimit", "", 0, 100, 30_000)]
)
def test_share_that_the_device_cannot_keep_is_refused_before_anything_is_made(tool, library, tmp_path, shape):
    driver = opened(tool, library, tmp_path)

    with pytest.raises(NvmlLikeError, match="cannot be kept") as no:
        driver.create(ONE, shape, 0, "a")

    assert (no.value.code, library.made_profiles) == (errors.INVALID_ARGUMENT, 0)


def test_holder_of_a_share_gets_its_node_and_holder_of_a_device_gets_none(tool, library, tmp_path):
    driver = opened(tool, library, tmp_path)
    driver.create(ONE, QUARTER, 0, "a")
    part = driver.create(ONE, QUARTER, 0, "b").uuid
    driver.create(TWO, PartitionShape("exclusive"), 0, "c")

    assert driver.access(part).nodes[-1].startswith("/dev/cambricon-caps/cap_dev0_mi")
    assert driver.access(TWO).nodes == ("/dev/cambricon_ctl", "/dev/cambricon_dev1", "/dev/cambricon_ipcm1")


def test_refusal_of_the_library_is_told_and_leaves_nothing(tool, library, tmp_path):
    library.refuses = 7
    driver = opened(tool, library, tmp_path)

    with pytest.raises(NvmlLikeError, match="CNDEV_ERROR_NO_PERMISSION") as no:
        driver.create(ONE, QUARTER, 0, "a")

    assert (no.value.code, driver.observe(ONE)) == (errors.NO_PERMISSION, [])


def test_instance_of_somebody_else_is_foreign_and_stays(tool, library, tmp_path):
    library.profiles[0][0] = (10, 1_024 * MIB)
    library.parts[0]["theirs"] = 0
    driver = opened(tool, library, tmp_path)

    part = driver.create(ONE, QUARTER, 0, "a").uuid

    assert {fact.uuid for fact in driver.observe(ONE)} == {part, f"{ONE}/smlutheirs"}
    driver.destroy(part)
    assert list(library.parts[0]) == ["theirs"]


def test_device_without_smlu_mode_says_which_command_turns_it_on(tool, library, tmp_path):
    library.smlu[0] = 0
    driver = opened(tool, library, tmp_path)

    assert driver.inventory()[0].modes == ("exclusive",)
    with pytest.raises(NotOfferedError, match="cnmon set -c 0 -smlu on"):
        driver.create(ONE, QUARTER, 0, "a")


def test_device_cut_by_mim_is_reported_and_not_leased(tool, library, tmp_path):
    library.mim[1] = 1
    driver = opened(tool, library, tmp_path)

    assert driver.inventory()[1].modes == ()
    assert driver.catalogue(TWO) == []
    with pytest.raises(NotOfferedError, match="MIM"):
        driver.create(TWO, PartitionShape("exclusive"), 0, "a")


def test_library_without_a_call_is_found_by_calling(tool, tmp_path):
    class Old(Library):
        cndevGetSMLUMode = None  # noqa: N815

    fact = opened(tool, Old(), tmp_path).inventory()[0]

    assert fact.modes == ("exclusive",)
    assert "bring the MLU driver up to date" in fact.refusals["memlimit"]


def test_processes_keep_a_device_from_being_taken_back(tool, library, tmp_path):
    driver = opened(tool, library, tmp_path)
    driver.create(ONE, PartitionShape("exclusive"), 0, "a")
    library.running[0] = [(4711, 2_097_152)]

    assert [(p.pid, p.memory_mib) for p in driver.processes(ONE)] == [(4711, 2_048)]
    with pytest.raises(NvmlLikeError) as no:
        driver.destroy(ONE)
    library.running[0] = []
    driver.destroy(ONE)
    assert (no.value.code, driver.observe(ONE)) == (errors.IN_USE, [])


def test_figures_and_unknown_ones(tool, library, tmp_path):
    driver = opened(tool, library, tmp_path)
    driver.create(ONE, PartitionShape("exclusive"), 0, "a")

    reading = driver.metrics()

    one, two = reading.devices
    assert (one.util_percent, one.memory_used_mib, one.power_w, one.temperature_c) == (
        17.0,
        1_200,
        63.0,
        41.0,
    )
    assert (two.util_percent, two.memory_used_mib, two.power_w, two.source) == (
        None,
        None,
        None,
        "unavailable",
    )
    assert reading.partitions[0].util_percent == 17.0
    encode(Samples(1, "b", 1, reading.devices, ()))


def test_device_that_vanishes_is_critical(tool, library, tmp_path):
    driver = opened(tool, library, tmp_path)
    assert driver.health() == []

    tool.text = tool.text.replace("000000000002", "000000000009")

    assert {f.code for f in driver.health()} == {"tool_unreadable"}
    assert [(f.device, f.code, f.severity) for f in driver.health()] == [(TWO, "device_lost", "critical")]


def test_missing_tool_is_one_sentence_and_a_missing_library_leases_nothing(tool, tmp_path, monkeypatch):
    with pytest.raises(DriverUnavailableError, match="cnmon is not installed"):
        CambriconDriver("boot", SimulatedShell(), tmp_path, lambda path: "")

    monkeypatch.setattr(cndev, "LIBRARIES", ("libcndev-that-is-not-here.so",))
    shell = SimulatedShell({"cnmon": tool, "env": tool})
    fact = CambriconDriver("boot", shell, tmp_path, tool.read).inventory()[0]
    assert (fact.modes, "CNToolkit" in fact.refusals["exclusive"]) == ((), True)


def test_structures_have_the_sizes_of_the_header():
    sizes = [
        ctypes.sizeof(kind) for kind in (cndev.SmluSet, cndev.SmluInfo, cndev.ProfileInfo, cndev.ProcessInfo)
    ]

    assert sizes == [16, 904, 144, 24]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.one_of(
        st.text(),
        st.sampled_from(['{"CnmonInfo": [1]}', '{"CnmonInfo": [{"CardNum": [], "UUID": {}}]}', "[" * 5_000]),
    )
)
def test_garbled_output_is_refused_in_a_sentence_and_never_a_traceback(tmp_path, text):
    tool = Cnmon()
    driver = opened(tool, Library(), tmp_path)
    tool.text = text

    assert driver.metrics().devices[0].util_percent is None
    assert {fact.code for fact in driver.health()} <= {"tool_unreadable", "device_lost"}
    with suppress(DriverUnavailableError):
        opened(tool, Library(), tmp_path)


def test_a_look_leaves_no_folder_behind_once_it_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tool = Cnmon()
    shell = SimulatedShell({"cnmon": tool, "env": tool})

    CambriconDriver("boot", shell, tmp_path / "run", tool.read, library=Library(), looks_only=True).close()

    assert list(tmp_path.iterdir()) == []
