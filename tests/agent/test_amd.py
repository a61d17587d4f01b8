"""AMD boards over an amd-smi that keeps its own state and prints as its source does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.drivers import errors
from nodeagent.drivers.amd.driver import AmdDriver
from nodeagent.drivers.base import PartitionShape, Tenant
from nodeagent.drivers.errors import DriverUnavailableError, NotOfferedError, NvmlLikeError
from nodeagent.drivers.kfd import NODES
from nodeagent.host.shell import Done
from nodeagent.protocol.codec import encode
from nodeagent.protocol.messages import Hello, Samples
from nodeagent.simulation.machine.world import SimulatedShell

DATA = Path(__file__).parent.parent / "data/vendors/amd"
ONE, TWO = "AMD-f18c1db6a4dea0", "AMD-f18c1db6a4dea1"
EIGHTH = PartitionShape("mig", "cpx.nps1", 1)
WHOLE = PartitionShape("exclusive")
COUNT = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}


def sample(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return found


class AmdSmi:
    """Two MI300X. Switching a layout renumbers everything, as on hosts."""

    def __init__(self) -> None:
        self.layouts = ["SPX", "SPX"]
        self.memory = "NPS1"
        self.running: dict[tuple[int, int], list[int]] = {}
        self.uncorrectable = 0
        self.changes: list[str] = []
        self.broken: dict[str, str] = {}
        self.wraps = False
        self.ignores_set = False
        self.lost: set[int] = set()

    def entries(self) -> list[tuple[int, int, int]]:
        """Number, board and partition of each entry."""
        places = [
            (b, p)
            for b, layout in enumerate(self.layouts)
            if b not in self.lost
            for p in range(COUNT[layout])
        ]
        return [(gpu, board, part) for gpu, (board, part) in enumerate(places)]

    def read(self, path: str) -> str:
        """Return the kernel's files: node 0 is the processor, then one node per entry."""
        for name, size in (("total", 196_592), ("used", 1_000)):
            if path.endswith(f":00.0/mem_info_vram_{name}"):
                return f"{size * 1024 * 1024}\n"
        if path == f"{NODES}/0/properties":
            return "simd_count 0\n"
        for gpu, board, part in self.entries():
            if path == f"{NODES}/{gpu + 1}/properties":
                place = (0x0C + board) << 8 | part
                facts = {"simd_count": 1216, "domain": 0, "location_id": place, "drm_render_minor": 128 + gpu}
                facts["unique_id"] = 0xF18C1DB6A4DEA0 + board
                return "".join(f"{name} {value}\n" for name, value in facts.items())
        raise OSError(path)

    def __call__(self, argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        words = list(argv[1:])
        if words[0] in self.broken:
            return Done(0, self.broken[words[0]])
        if words[0] == "version":
            return Done(0, "AMDSMI Tool: 24.7.1 | ROCm version: 6.3.0\n")
        if words[0] == "set":
            return self._set(words)
        rows = [getattr(self, f"_{words[0]}")(*entry) for entry in self.entries()]
        return Done(0, json.dumps({"gpu_data": rows} if self.wraps else rows))

    def _set(self, words: list[str]) -> Done:
        self.changes.append(" ".join(words[1:]))
        _, board, _ = self.entries()[int(words[words.index("--gpu") + 1])]
        if any(on == board and pids for (on, _), pids in self.running.items()):
            return Done(1, "", "ValueError: Unable to set compute partition: AMDSMI_STATUS_BUSY")
        if not self.ignores_set:
            self.layouts[board] = words[words.index("--compute-partition") + 1]
        return Done(0, "ok")

    def _list(self, gpu: int, board: int, part: int) -> dict[str, Any]:
        own = {
            "gpu": gpu,
            "bdf": f"0000:{0x0C + board:02X}:00.{part}",
            "node_id": gpu + 1,
            "partition_id": part,
        }
        return {**sample("list"), **own}

    def _static(self, gpu: int, board: int, part: int) -> dict[str, Any]:
        facts = sample("static")
        facts["gpu"] = gpu
        facts["asic"]["asic_serial"] = f"0xF18C1DB6A4DEA{board}"
        facts["asic"]["num_compute_units"] = 304 // COUNT[self.layouts[board]]
        facts["partition"] = {"compute_partition": self.layouts[board], "memory_partition": self.memory}
        return facts

    def _metric(self, gpu: int, board: int, part: int) -> dict[str, Any]:
        if part:
            return {"gpu": gpu, "usage": "N/A", "mem_usage": sample("metric")["mem_usage"]}
        facts = {**sample("metric"), "gpu": gpu}
        facts["ecc"]["total_uncorrectable_count"] = self.uncorrectable
        return facts

    def _process(self, gpu: int, board: int, part: int) -> dict[str, Any]:
        pids = self.running.get((board, part), [])
        if not pids:
            return {"gpu": gpu, "process_list": [{"process_info": "No running processes detected"}]}
        row = sample("process")["process_list"][0]["process_info"]
        return {"gpu": gpu, "process_list": [{"process_info": {**row, "pid": pid}} for pid in pids]}


@pytest.fixture
def tool() -> AmdSmi:
    return AmdSmi()


def opened(tool: AmdSmi, folder: Path, **layouts: str) -> AmdDriver:
    named = {key.replace("all", "*"): value for key, value in layouts.items()}
    return AmdDriver("boot", SimulatedShell({"amd-smi": tool}), folder, tool.read, layouts=named)


@pytest.mark.parametrize("wraps", [False, True])
def test_boards_are_listed_whole_where_no_layout_is_fixed(tool, tmp_path, wraps):
    tool.wraps = wraps

    one, two = opened(tool, tmp_path).inventory()

    assert (one.uuid, two.uuid, one.model) == (ONE, TWO, "mi300x-192gb")
    assert (one.memory_mib, one.sm_count, one.grid, one.modes) == (196_592, 304, 1, ("exclusive",))
    assert (one.pci_bus_id, one.numa_node, one.mig_enabled) == ("0000:0C:00.0", 0, None)


def test_fixed_layout_is_offered_as_one_profile_of_equal_parts(tool, tmp_path):
    driver = opened(tool, tmp_path, all="cpx")

    one, _ = driver.inventory()
    (offer,) = driver.catalogue(ONE)

    assert (one.grid, one.modes) == (8, ("mig",))
    assert (offer.shape.profile, offer.starts, offer.most) == ("cpx.nps1", tuple(range(8)), 8)
    assert (offer.shape.memory_mib, one.profiles[0].sm_count) == (24_574, 38)
    assert "spx" in one.refusals["exclusive"]
    encode(Hello("n", "", "b", "1", "amd", driver.version, (one,)))


def test_figures_of_a_board_are_the_same_in_every_layout(tool, tmp_path):
    before = opened(tool, tmp_path, all="cpx").inventory()
    tool.layouts = ["CPX", "CPX"]

    after = opened(tool, tmp_path, all="cpx").inventory()

    assert [(f.uuid, f.memory_mib, f.sm_count, f.profiles) for f in after] == [
        (f.uuid, f.memory_mib, f.sm_count, f.profiles) for f in before
    ]


def test_empty_board_is_switched_once_and_further_partitions_change_nothing(tool, tmp_path):
    driver = opened(tool, tmp_path, all="cpx")

    third = driver.create(ONE, EIGHTH, 3, "a")
    driver.create(ONE, EIGHTH, 0, "b")

    assert tool.changes == ["--gpu 0 --compute-partition CPX"]
    assert (third.profile, third.start, third.size, third.lease) == ("cpx.nps1", 3, 1, "a")
    assert {fact.start for fact in driver.observe(ONE)} == {0, 3}
    assert tool.layouts == ["CPX", "SPX"]


def test_second_board_is_found_again_after_the_first_was_renumbered(tool, tmp_path):
    driver = opened(tool, tmp_path, all="cpx")
    driver.create(ONE, EIGHTH, 0, "a")

    driver.create(TWO, EIGHTH, 7, "b")

    assert tool.changes[-1] == "--gpu 8 --compute-partition CPX"
    part = next(fact.uuid for fact in driver.observe(TWO))
    assert driver.access(part).nodes == ("/dev/kfd", "/dev/dri/renderD143")


def test_board_with_work_on_it_is_never_switched(tool, tmp_path):
    tool.running[(0, 0)] = [99]
    driver = opened(tool, tmp_path, all="cpx")

    with pytest.raises(NvmlLikeError) as no:
        driver.create(ONE, EIGHTH, 0, "a")

    assert (no.value.code, tool.changes, driver.observe(ONE)) == (errors.IN_USE, [], [])


def test_switch_that_the_tool_claims_but_does_not_make_is_an_error(tool, tmp_path):
    tool.ignores_set = True
    driver = opened(tool, tmp_path, all="cpx")

    with pytest.raises(NvmlLikeError, match="stands in spx"):
        driver.create(ONE, EIGHTH, 0, "a")

    assert driver.observe(ONE) == []


def test_memory_mode_is_never_changed_by_the_agent(tool, tmp_path):
    driver = opened(tool, tmp_path, all="cpx.nps4")

    assert (driver.inventory()[0].modes, driver.catalogue(ONE)) == ((), [])
    with pytest.raises(NotOfferedError, match="reloads the driver"):
        driver.create(ONE, PartitionShape("mig", "cpx.nps4", 1), 0, "a")


def test_memory_mode_that_changed_since_the_start_is_noticed(tool, tmp_path):
    driver = opened(tool, tmp_path, all="cpx")
    tool.memory = "NPS4"

    with pytest.raises(NotOfferedError, match="stands in nps4"):
        driver.create(ONE, EIGHTH, 0, "a")


def test_place_profile_and_owner_are_checked_before_anything_is_touched(tool, tmp_path):
    driver = opened(tool, tmp_path, all="cpx")

    for shape, start in ((EIGHTH, 8), (PartitionShape("mig", "qpx.nps1", 1), 0)):
        with pytest.raises(NvmlLikeError) as no:
            driver.create(ONE, shape, start, "a")
        assert no.value.code == errors.INVALID_ARGUMENT
    with pytest.raises(NotOfferedError):
        driver.create(ONE, WHOLE, 0, "a")
    assert tool.changes == []
    driver.create(ONE, EIGHTH, 1, "a")
    with pytest.raises(NvmlLikeError) as no:
        driver.create(ONE, EIGHTH, 1, "b")
    assert no.value.code == errors.INSUFFICIENT_RESOURCES
    assert driver.create(ONE, EIGHTH, 1, "a").lease == "a"


def test_partition_is_taken_back_when_its_processes_are_gone(tool, tmp_path):
    driver = opened(tool, tmp_path, all="cpx")
    part = driver.create(ONE, EIGHTH, 2, "a").uuid
    driver.attach(part, Tenant("a"))
    tool.running[(0, 2)] = [4711]
    assert [(p.pid, p.memory_mib, p.name) for p in driver.processes(part)] == [(4711, 1024, "python3")]

    with pytest.raises(NvmlLikeError) as no:
        driver.destroy(part)
    tool.running.clear()
    driver.destroy(part)
    driver.destroy(part)

    assert (no.value.code, driver.observe(ONE), tool.layouts[0]) == (errors.IN_USE, [], "CPX")


def test_owners_are_known_again_after_the_agent_restarts(tool, tmp_path):
    opened(tool, tmp_path, all="cpx").create(ONE, EIGHTH, 5, "a")

    again = opened(tool, tmp_path, all="cpx")

    assert [(f.lease, f.start) for f in again.observe(ONE)] == [("a", 5)]


def test_whole_board_is_reached_by_its_own_render_node_and_name(tool, tmp_path):
    driver = opened(tool, tmp_path)
    driver.create(TWO, WHOLE, 0, "a")

    way = driver.access(TWO)

    assert way.nodes == ("/dev/kfd", "/dev/dri/renderD129")
    assert way.env == {"ROCR_VISIBLE_DEVICES": "GPU-00f18c1db6a4dea1"}


def test_partition_is_reached_by_its_own_render_node_and_a_name_that_needs_no_number(tool, tmp_path):
    driver = opened(tool, tmp_path, all="cpx")

    way = driver.access(driver.create(ONE, EIGHTH, 4, "a").uuid)

    assert way.env == {"ROCR_VISIBLE_DEVICES": "GPU-00f18c1db6a4dea0"}
    assert way.nodes == ("/dev/kfd", "/dev/dri/renderD132")


def test_figures_of_a_whole_board(tool, tmp_path):
    driver = opened(tool, tmp_path)
    driver.create(ONE, WHOLE, 0, "a")

    reading = driver.metrics()

    board = reading.devices[0]
    assert (board.util_percent, board.bandwidth_percent, board.memory_used_mib) == (42.0, 7.0, 1_000)
    assert (board.power_w, board.temperature_c, board.energy_mj) == (151.0, 45.0, 1_234_567)
    assert (board.power_limit_w, board.source) == (750.0, "amd-smi")
    assert reading.partitions[0].util_percent == 42.0
    encode(Samples(1, "b", 1, reading.devices, ()))


def test_partition_has_its_own_use_and_no_figure_that_is_not_its_own(tool, tmp_path):
    driver = opened(tool, tmp_path, all="cpx")
    for start in (0, 1, 2):
        driver.create(ONE, EIGHTH, start, f"lease-{start}")

    parts = driver.metrics().partitions

    by_start = {p.start: p for p in parts}
    assert (by_start[0].util_percent, by_start[1].util_percent) == (80.0, 20.0)
    assert (by_start[2].util_percent, by_start[2].source) == (None, "unavailable")
    assert {p.memory_used_mib for p in parts} == {None}
    assert {p.power_w for p in parts} == {None}


def test_lost_board_and_uncorrected_errors_are_reported(tool, tmp_path):
    driver = opened(tool, tmp_path)
    assert driver.health() == []

    tool.uncorrectable = 3
    assert {f.code for f in driver.health()} == {"ecc_uncorrectable"}

    tool.uncorrectable, tool.lost = 0, {1}
    assert {f.code for f in driver.health()} == {"tool_unreadable"}
    assert [(f.device, f.code, f.severity) for f in driver.health()] == [(TWO, "device_lost", "critical")]
    with pytest.raises(NvmlLikeError) as no:
        driver.create(TWO, WHOLE, 0, "a")
    assert no.value.code == errors.GPU_IS_LOST


def test_missing_tool_and_changed_form_are_one_sentence(tool, tmp_path):
    with pytest.raises(DriverUnavailableError, match="amd-smi is not installed"):
        AmdDriver("boot", SimulatedShell(), tmp_path, lambda path: "")

    tool.broken["list"] = '{"devices": []}'
    with pytest.raises(DriverUnavailableError, match=r"AMDSMI Tool: 24\.7\.1.*`list --json`"):
        opened(tool, tmp_path)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    what=st.sampled_from(["list", "static", "metric", "process"]),
    text=st.one_of(
        st.text(),
        st.recursive(
            st.one_of(
                st.none(), st.integers(), st.floats(), st.text(), st.just([{"gpu": 0, "bdf": "0000:0c:00.0"}])
            ),
            lambda inner: st.one_of(
                st.lists(inner), st.dictionaries(st.sampled_from(["gpu", "gpu_data", "asic"]), inner)
            ),
        ).map(json.dumps),
    ),
)
def test_garbled_output_is_refused_in_a_sentence_and_never_a_traceback(tmp_path, what, text):
    tool = AmdSmi()
    tool.broken[what] = text
    with suppress(DriverUnavailableError, NvmlLikeError, NotOfferedError):
        driver = opened(tool, tmp_path, all="cpx")
        driver.metrics()
        driver.health()
        driver.processes(driver.create(ONE, EIGHTH, 0, "a").uuid)
