"""Ascend devices over an npu-smi that keeps its own state and prints as published outputs do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.drivers import errors
from nodeagent.drivers.ascend.driver import AscendDriver
from nodeagent.drivers.base import PartitionShape, Tenant
from nodeagent.drivers.errors import DriverUnavailableError, NotOfferedError, NvmlLikeError
from nodeagent.host.shell import Done
from nodeagent.protocol.codec import encode
from nodeagent.protocol.messages import Samples
from nodeagent.simulation.machine.world import SimulatedShell

DATA = Path(__file__).parent.parent / "data/vendors/ascend"
HALF = PartitionShape("memlimit", "", 0, 500, 16_384)
QUARTER = PartitionShape("memlimit", "", 0, 250, 8_192)
CORES = {"vir10_3c_16g": (10, 16), "vir10_3c_16g_nm": (10, 16), "vir05_1c_8g": (5, 8)}


class NpuSmi:
    """Two chips with twenty AI cores and 32 GB each."""

    def __init__(self) -> None:
        self.parts: dict[int, dict[int, str]] = {0: {}, 1: {}}
        self.running: dict[int, list[tuple[int, str, int]]] = {0: [], 1: []}
        self.health, self.mode, self.recover = "OK", "docker", "Disable"
        self.changes: list[str] = []
        self.broken: dict[str, str] = {}
        self.dies_after_create = False

    def __call__(self, argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        words = list(argv[1:])
        if words == ["-v"]:
            return Done(0, "npu-smi version: 24.1.rc2\n")
        what = words[2] if "-t" in words else " ".join(words)
        if what in self.broken:
            return Done(0, self.broken[what])
        npu = int(words[words.index("-i") + 1]) if "-i" in words else 0
        if words[0] == "set":
            return self._set(what, npu, words)
        return Done(0, self._info(what, npu))

    def _info(self, what: str, npu: int) -> str:
        plain = {"info -m": "map", "board": "board", "memory": "memory", "template-info": "templates"}
        if what in plain:
            return (DATA / f"{plain[what]}.txt").read_text().replace("{npu}", str(npu))
        if what == "vnpu-mode":
            return f"\tvnpu-mode                      : {self.mode}\n"
        if what == "vnpu-cfg-recover":
            return f"\tVNPU config recover mode       : {self.recover}\n"
        if what == "info":
            return (DATA / "overview.txt").read_text().format(health=self.health)
        if what == "proc-mem":
            rows = [
                f"\tProcess id:{p}  Process name:{n}     Process memory(MB):{m}"
                for p, n, m in self.running[npu]
            ]
            return "\n".join(rows) or "\tNo process in device.\n"
        return self._cut(npu)

    def _cut(self, npu: int) -> str:
        parts = self.parts[npu]
        free = 20 - sum(CORES[name][0] for name in parts.values())
        memory = 32 - sum(CORES[name][1] for name in parts.values())
        head = (DATA / "cut.txt").read_text().format(free=free, memory=memory, count=len(parts))
        line = "+" + "-" * 79 + "+\n"
        return head + "".join(
            f"|  {i:<9}|  0             |  000000000000  |  0       |  {name:<20}|\n{line}"
            for i, name in parts.items()
        )

    def _set(self, what: str, npu: int, words: list[str]) -> Done:
        self.changes.append(" ".join(words[2:]))
        parts = self.parts[npu]
        if what == "create-vnpu":
            name = words[words.index("-f") + 1]
            if sum(CORES[n][0] for n in (*parts.values(), name)) > 20:
                return Done(0, "\tStatus  : Failed\n\tMessage : The resource is not enough\n")
            parts[next(i for i in range(100 + 16 * npu, 200) if i not in parts)] = name
            if self.dies_after_create:
                raise KeyboardInterrupt
            return Done(0, "\tStatus                : OK\n\tMessage               : Create vnpu success\n")
        parts.pop(int(words[words.index("-v") + 1]), None)
        return Done(0, "\tStatus                : OK\n\tMessage               : Destroy vnpu success\n")


@pytest.fixture
def tool() -> NpuSmi:
    return NpuSmi()


def opened(tool: NpuSmi, folder: Path, cgroups: dict[str, str] | None = None) -> AscendDriver:
    def read(path: str) -> str:
        try:
            return (cgroups or {})[path]
        except KeyError as no:
            raise OSError(path) from no

    return AscendDriver("boot-1", SimulatedShell({"npu-smi": tool}), folder, read)


def first(driver: AscendDriver) -> str:
    return driver.inventory()[0].uuid


def test_chips_are_listed_with_memory_cores_and_place_and_controllers_are_not(tool, tmp_path):
    driver = opened(tool, tmp_path)

    one, two = driver.inventory()

    assert (one.model, one.memory_mib, one.sm_count) == ("Ascend 910B4", 32_768, 20)
    assert (one.modes, one.max_clients, one.refusals) == (("exclusive", "memlimit"), 4, {})
    assert (one.uuid, one.serial) == ("NPU-01A2B3C411112222333344445555666677778880-0", "SN-EXAMPLE-0")
    assert two.uuid != one.uuid
    assert driver.version == "24.1.rc2"


def test_faulty_chip_costs_that_chip_and_not_the_node(tool, tmp_path, caplog):
    def half_broken(argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        if "-i" in argv and argv[argv.index("-i") + 1] == "0":
            return Done(255, "", "Failed to query the device, it is lost")
        return tool(argv, stdin, env)

    driver = AscendDriver("boot", SimulatedShell({"npu-smi": half_broken}), tmp_path, lambda path: "")

    assert [fact.serial for fact in driver.inventory()] == ["SN-EXAMPLE-1"]
    assert "it is lost" in caplog.text


def test_chip_that_answered_earlier_in_this_boot_is_kept_and_one_failed_call_costs_nothing(tool, tmp_path):
    broken: list[int] = []

    def failing(argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        if broken and "-i" in argv and argv[argv.index("-i") + 1] == "0":
            broken.pop()
            return Done(255, "", "Failed to query the device, it is lost")
        return tool(argv, stdin, env)

    def start(boot: str, fails: int) -> list[str]:
        broken[:] = [1] * fails
        driver = AscendDriver(boot, SimulatedShell({"npu-smi": failing}), tmp_path, lambda path: "")
        return [fact.uuid for fact in driver.inventory()]

    both = start("boot", 1)

    assert len(both) == 2
    assert sorted(start("boot", 100)) == sorted(both)
    assert len(start("another", 100)) == 1


def test_each_template_is_an_offer_with_its_own_share_and_memory(tool, tmp_path):
    driver = opened(tool, tmp_path)

    offers = driver.catalogue(first(driver))

    assert [(o.shape.profile, o.shape.share_milli, o.shape.memory_mib, o.most) for o in offers] == [
        ("", 1000, 32_768, 1),
        ("vir10_3c_16g", 500, 16_384, 2),
        ("vir10_3c_16g_nm", 500, 16_384, 2),
        ("vir05_1c_8g", 250, 8_192, 4),
    ]


def test_share_becomes_the_plainest_template_that_fits_exactly(tool, tmp_path):
    driver = opened(tool, tmp_path)
    device = first(driver)

    fact = driver.create(device, HALF, 0, "lease-a.1.0")

    assert tool.parts[0] == {100: "vir10_3c_16g"}
    assert driver.observe(device) == [fact]
    assert (fact.lease, fact.profile, fact.size) == ("lease-a.1.0", "memlimit", 0)
    driver.destroy(fact.uuid)
    assert (driver.observe(device), tool.parts[0]) == ([], {})


def test_template_that_a_shape_names_is_taken_where_several_fit(tool, tmp_path):
    driver = opened(tool, tmp_path)

    driver.create(first(driver), PartitionShape("memlimit", "vir10_3c_16g_nm", 0, 500, 16_384), 0, "a")

    assert list(tool.parts[0].values()) == ["vir10_3c_16g_nm"]


def test_share_without_template_is_refused_by_naming_the_templates(tool, tmp_path):
    driver = opened(tool, tmp_path)

    with pytest.raises(NvmlLikeError) as no:
        driver.create(first(driver), PartitionShape("memlimit", "", 0, 300, 8_192), 0, "a")

    assert no.value.code == errors.INVALID_ARGUMENT
    assert "vir05_1c_8g (250 ‰, 8192 MiB)" in no.value.detail
    assert tool.changes == []


def test_asking_twice_for_the_same_owner_makes_one_vnpu(tool, tmp_path):
    driver = opened(tool, tmp_path)
    device = first(driver)

    assert driver.create(device, QUARTER, 0, "a") == driver.create(device, QUARTER, 0, "a")

    assert len(tool.parts[0]) == 1


def test_vnpu_made_before_a_crash_is_taken_up_by_its_owner_after_it(tool, tmp_path):
    tool.dies_after_create = True
    driver = opened(tool, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        driver.create(first(driver), QUARTER, 0, "a")
    tool.dies_after_create = False

    again = opened(tool, tmp_path)

    assert [fact.lease for fact in again.observe(first(again))] == ["a"]
    assert len(tool.parts[0]) == 1


def test_vnpu_that_nobody_here_made_is_foreign_and_keeps_the_chip_from_being_leased_whole(tool, tmp_path):
    tool.parts[0][107] = "vir05_1c_8g"
    driver = opened(tool, tmp_path)
    device = first(driver)

    (fact,) = driver.observe(device)

    assert (fact.uuid, fact.lease) == (f"{device}/vnpu107", "")
    with pytest.raises(NvmlLikeError) as no:
        driver.create(device, PartitionShape("exclusive"), 0, "a")
    assert no.value.code == errors.INSUFFICIENT_RESOURCES
    driver.destroy(fact.uuid)
    assert tool.parts[0] == {107: "vir05_1c_8g"}


def test_share_that_was_removed_by_hand_is_no_longer_reported(tool, tmp_path):
    driver = opened(tool, tmp_path)
    device = first(driver)
    driver.create(device, QUARTER, 0, "a")

    tool.parts[0].clear()

    assert driver.observe(device) == []


def test_tool_that_refuses_leaves_nothing_in_the_book(tool, tmp_path):
    tool.parts[0] = {100: "vir10_3c_16g", 101: "vir05_1c_8g"}
    driver = opened(tool, tmp_path)
    device = first(driver)

    with pytest.raises(NvmlLikeError, match="resource is not enough"):
        driver.create(device, HALF, 0, "a")

    assert [fact.lease for fact in driver.observe(device)] == ["", ""]


def test_whole_chip_is_given_with_its_own_node_and_a_vnpu_under_its_number(tool, tmp_path):
    driver = opened(tool, tmp_path)
    one, two = (fact.uuid for fact in driver.inventory())

    held = driver.access(driver.create(two, PartitionShape("exclusive"), 0, "a").uuid)
    cut = driver.access(driver.create(one, QUARTER, 0, "b").uuid)

    assert "/dev/davinci1" in held.nodes
    assert "/dev/vdavinci100" in cut.nodes
    assert cut.binds == {"/dev/vdavinci100": "/dev/davinci100"}
    assert cut.env["ASCEND_VISIBLE_DEVICES"] == "100"
    assert not {"/dev/davinci0", "/dev/davinci1"} & set(cut.nodes)


def test_processes_of_two_vnpus_are_told_apart_by_their_cgroups(tool, tmp_path):
    cgroups = {"/proc/11/cgroup": "0::/berth/a\n", "/proc/12/cgroup": "0::/berth/b/inner\n"}
    driver = opened(tool, tmp_path, cgroups)
    device = first(driver)
    a, b = (driver.create(device, QUARTER, 0, owner).uuid for owner in "ab")
    tool.running[0] = [(11, "python3", 900), (12, "python3", 800), (13, "stray", 1)]
    driver.confine(a, "/sys/fs/cgroup/berth/a")
    driver.confine(b, "/sys/fs/cgroup/berth/b")

    assert [p.pid for p in driver.tenants(a)] == [11]
    assert [(p.pid, p.memory_mib) for p in driver.tenants(b)] == [(12, 800)]
    assert [p.pid for p in driver.processes(a)] == [11, 13]
    with pytest.raises(NvmlLikeError) as no:
        driver.destroy(a)
    assert no.value.code == errors.IN_USE


def test_share_that_ends_before_its_neighbour_begins_to_be_confined_waits_for_what_runs(tool, tmp_path):
    cgroups = {"/proc/11/cgroup": "0::/berth/b\n"}
    driver = opened(tool, tmp_path, cgroups)
    device = first(driver)
    a, b = (driver.create(device, QUARTER, 0, owner).uuid for owner in "ab")
    tool.running[0] = [(11, "python3", 900)]

    assert [p.pid for p in driver.processes(a)] == [11]
    driver.confine(b, "/sys/fs/cgroup/berth/b")
    assert driver.processes(a) == []
    driver.destroy(a)


def test_figures_come_from_one_call_and_unknown_ones_stay_unknown(tool, tmp_path):
    driver = opened(tool, tmp_path)
    one, two = (fact.uuid for fact in driver.inventory())
    driver.create(one, PartitionShape("exclusive"), 0, "a")

    reading = driver.metrics()

    first_chip, second_chip = reading.devices
    assert (first_chip.device, first_chip.util_percent, first_chip.memory_used_mib) == (one, 37.0, 26_838)
    assert (first_chip.power_w, first_chip.temperature_c) == (88.2, 30.0)
    assert (second_chip.device, second_chip.power_w) == (two, None)
    (part,) = reading.partitions
    assert (part.partition, part.util_percent, part.source) == (one, 37.0, "npu-smi")
    encode(Samples(1, "b", 1, reading.devices, ()))


def test_chip_that_is_not_ok_is_reported_with_what_to_do(tool, tmp_path):
    driver = opened(tool, tmp_path)
    assert driver.health() == []

    tool.health = "Alarm"
    (fact,) = driver.health()

    assert (fact.device, fact.severity, fact.action) == (driver.inventory()[1].uuid, "critical", "drain")


def test_vnpus_that_outlive_a_reboot_are_warned_of(tool, tmp_path):
    tool.recover = "Enable"

    (fact,) = opened(tool, tmp_path).health()

    assert (fact.code, fact.device) == ("vnpu_cfg_recover", "")


def test_host_in_vm_mode_offers_whole_chips_and_says_what_to_set(tool, tmp_path):
    tool.mode = "vm"
    driver = opened(tool, tmp_path)

    fact = driver.inventory()[0]

    assert fact.modes == ("exclusive",)
    assert "vnpu-mode -d 0" in fact.refusals["memlimit"]
    with pytest.raises(NotOfferedError, match="vnpu-mode"):
        driver.create(fact.uuid, QUARTER, 0, "a")


def test_operator_may_offer_less_than_the_devices_can(tool, tmp_path):
    shell = SimulatedShell({"npu-smi": tool})
    driver = AscendDriver("boot", shell, tmp_path, lambda path: "", offer=frozenset({"exclusive"}))

    fact = driver.inventory()[0]

    assert (fact.modes, [o.shape.mode for o in driver.catalogue(fact.uuid)]) == (
        ("exclusive",),
        ["exclusive"],
    )
    with pytest.raises(NotOfferedError, match="operator does not offer memlimit"):
        driver.create(fact.uuid, QUARTER, 0, "a")


def test_missing_tool_is_one_sentence(tmp_path):
    with pytest.raises(DriverUnavailableError, match="npu-smi is not installed"):
        AscendDriver("boot", SimulatedShell(), tmp_path, lambda path: "")


def test_entry_of_another_boot_is_not_believed(tool, tmp_path):
    driver = opened(tool, tmp_path)
    driver.create(first(driver), PartitionShape("exclusive"), 0, "a")

    later = AscendDriver("boot-2", SimulatedShell({"npu-smi": tool}), tmp_path, lambda path: "")

    assert later.observe(first(later)) == []


def test_torn_entry_is_ignored_and_the_rest_is_kept(tool, tmp_path, caplog):
    driver = opened(tool, tmp_path)
    device = first(driver)
    driver.create(device, PartitionShape("exclusive"), 0, "a")
    (tmp_path / "ascend" / "torn.json").write_text('{"boot_id": "boot-1"')

    again = opened(tool, tmp_path)

    assert [fact.lease for fact in again.observe(device)] == ["a"]
    assert "torn.json" in caplog.text
    assert [fact.code for fact in again.health() if "torn.json" in fact.detail] == ["share_unread"]


def test_verbs_that_these_devices_lack_say_so(tool, tmp_path):
    driver = opened(tool, tmp_path)
    device = first(driver)

    with pytest.raises(NotOfferedError):
        driver.set_mig_mode(device, enabled=True)
    with pytest.raises(NotOfferedError):
        driver.set_power(asleep=True)
    with pytest.raises(NvmlLikeError) as no:
        driver.attach("VNPU-none", Tenant("a"))
    assert (driver.power(), no.value.code) == ("unsupported", errors.NOT_FOUND)
    driver.set_power(asleep=False)
    driver.detach("VNPU-none", kill=True)
    driver.destroy("VNPU-none")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    what=st.sampled_from(["info", "info -m", "board", "memory", "template-info", "info-vnpu", "proc-mem"]),
    text=st.text(),
)
def test_garbled_output_is_refused_in_a_sentence_and_never_a_traceback(tmp_path, what, text):
    tool = NpuSmi()
    tool.broken[what] = text
    with suppress(DriverUnavailableError, NvmlLikeError, NotOfferedError):
        driver = opened(tool, tmp_path)
        device = first(driver)
        driver.metrics()
        driver.health()
        driver.processes(driver.create(device, QUARTER, 0, "a").uuid)
