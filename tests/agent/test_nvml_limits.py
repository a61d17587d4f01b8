"""Hard memory limits through the driver of real devices, on a simulated host."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from nodeagent import cli
from nodeagent.commands import opening
from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape, Tenant
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.nvml.shares.memory import GET, NO_LIMIT, OWN, SET
from nodeagent.runtimes.plain import PlainRuntime
from nodeagent.simulation.full_host import FullHost, account
from nodeagent.simulation.machine import proc
from tests.agent.device_bench import ROOT, Bench, Crash, refused

MIB = 1024 * 1024
UNIT = f"{ROOT}/berth.slice/a.service"
NEIGHBOUR = f"{ROOT}/berth.slice/b.service"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.host.cgroups |= {UNIT, NEIGHBOUR}
    return bench


def limited(bench: Bench, owner: str = "a.1.0", cgroup: str = UNIT, mib: int = 20_000) -> str:
    made = bench.driver.create(bench.device, PartitionShape("memlimit", "", 0, 250, mib), 0, owner)
    bench.driver.attach(made.uuid, Tenant(owner, user="alice"))
    bench.driver.confine(made.uuid, cgroup)
    return made.uuid


def limit(bench: Bench, cgroup: str = UNIT) -> tuple[int, int] | None:
    """What the device keeps for a cgroup (soft, hard) in MiB; None for no limit."""
    kept = bench.host.devices[0].limits.get(proc.below_root(cgroup))
    return None if kept is None else (kept[0] // MIB, kept[1] // MIB)


def test_a_limit_is_strict_and_on_the_units_own_cgroup(bench):
    limited(bench)

    assert limit(bench) == (20_000, 20_000)
    assert limit(bench, f"{ROOT}/berth.slice") is None


def test_ending_a_share_gives_its_reservation_back_before_its_cgroup_goes(bench):
    share, other = limited(bench), limited(bench, "b.1.0", NEIGHBOUR, 30_000)

    bench.driver.detach(share, kill=False)
    assert limit(bench) == (0, 20_000)
    bench.driver.detach(share, kill=True)
    bench.driver.destroy(share)

    assert limit(bench) is None
    assert limit(bench, NEIGHBOUR) == (30_000, 30_000)
    assert [fact.uuid for fact in bench.driver.observe(bench.device)] == [other]


def test_a_cgroup_that_is_gone_has_nothing_to_give_back(bench):
    share = limited(bench)
    bench.driver.detach(share, kill=False)
    bench.host.cgroups.discard(UNIT)

    bench.driver.detach(share, kill=True)
    bench.driver.destroy(share)

    assert bench.driver.observe(bench.device) == []


@pytest.mark.parametrize("code", [errors.NOT_FOUND, errors.UNKNOWN])
def test_only_what_is_gone_may_refuse_to_be_loosened(bench, code):
    share = limited(bench)
    bench.host.faults.refusals[SET] = deque([code])

    if code == errors.NOT_FOUND:
        bench.driver.detach(share, kill=False)
    else:
        with refused(code, "limiting the memory"):
            bench.driver.detach(share, kill=False)


def test_a_unit_without_cgroup_cannot_be_limited_and_the_sentence_says_what_can(bench):
    made = bench.driver.create(bench.device, PartitionShape("memlimit", "", 0, 250, 20_000), 0, "a.1.0")

    with pytest.raises(NotOfferedError, match="systemd runtime, or ask for another sharing mode"):
        bench.driver.confine(made.uuid, "")


def test_a_limit_that_does_not_read_back_is_refused(bench, monkeypatch):
    device = bench.host.devices[0]

    class Deaf(dict[str, tuple[int, int]]):
        def __setitem__(self, path: str, kept: tuple[int, int]) -> None:
            super().__setitem__(path, (kept[0], kept[1] * 2))

    monkeypatch.setattr(device, "limits", Deaf())

    with refused(errors.UNKNOWN, "the driver keeps 40000 MiB"):
        limited(bench)


def test_a_driver_that_rounds_up_a_little_is_accepted(bench, monkeypatch):
    class Rounding(dict[str, tuple[int, int]]):
        def __setitem__(self, path: str, kept: tuple[int, int]) -> None:
            soft, hard = (-(-limit // (1024 * MIB)) * 1024 * MIB for limit in kept)
            super().__setitem__(path, (soft, hard))

    monkeypatch.setattr(bench.host.devices[0], "limits", Rounding())

    limited(bench)

    assert limit(bench) == (20_480, 20_480)


def test_a_driver_that_shows_no_reservation_is_not_called_one_that_lost_it(bench, monkeypatch):
    class Hiding(dict[str, tuple[int, int]]):
        def __setitem__(self, path: str, kept: tuple[int, int]) -> None:
            super().__setitem__(path, (0, kept[1]))

    monkeypatch.setattr(bench.host.devices[0], "limits", Hiding())
    share = limited(bench)
    bench.changes.clear()

    bench.driver.confine(share, UNIT)

    assert (bench.changes, bench.driver.health()) == ([], [])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_while_limiting_ends_in_the_same_limit(bench, when):
    made = bench.driver.create(bench.device, PartitionShape("memlimit", "", 0, 250, 20_000), 0, "a.1.0")
    bench.crash_at = f"{SET}.{when}"
    with pytest.raises(Crash):
        bench.driver.confine(made.uuid, UNIT)

    bench.agent().confine(made.uuid, UNIT)
    assert limit(bench) == (20_000, 20_000)
    bench.agent().detach(made.uuid, kill=False)
    bench.driver.destroy(made.uuid)

    assert limit(bench) is None


def test_a_crash_while_limiting_leaves_nothing_that_the_next_agent_cannot_clear(bench):
    made = bench.driver.create(bench.device, PartitionShape("memlimit", "", 0, 250, 20_000), 0, "a.1.0")
    bench.crash_at = f"{SET}.after"
    with pytest.raises(Crash):
        bench.driver.confine(made.uuid, UNIT)

    bench.agent().detach(made.uuid, kill=True)
    bench.driver.destroy(made.uuid)

    assert limit(bench) is None


def test_an_older_driver_says_which_one_is_needed(tmp_path):
    bench = Bench(tmp_path, driver_version="570.86", missing={SET, "nvmlDeviceGetMemoryLimits_v1"})

    (fact,) = bench.driver.inventory()

    assert "memlimit" not in fact.modes
    assert fact.refusals["memlimit"].startswith("driver 570.86 has no memory limits")
    with pytest.raises(NotOfferedError, match="615"):
        bench.driver.create(bench.device, PartitionShape("memlimit", "", 0, 250, 20_000), 0, "a.1.0")


def test_a_host_without_cgroup_v2_says_so(bench):
    bench.host.hidden.add(f"{ROOT}/cgroup.controllers")

    assert "cgroup v2" in bench.agent().inventory()[0].refusals["memlimit"]


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ({"has_units": False}, "let the agent use the systemd runtime"),
        ({"is_root": False}, "run the agent as root"),
    ],
)
def test_limits_are_offered_only_to_an_agent_that_may_set_them_on_units(bench, host, said):
    fact = bench.agent(**host).inventory()[0]

    assert "memlimit" not in fact.modes
    assert said in fact.refusals["memlimit"]
    with pytest.raises(NotOfferedError, match=said):
        limited(bench)


@pytest.mark.parametrize(
    ("code", "has_dmem", "said"),
    [
        (errors.NOT_SUPPORTED, True, "this device keeps no memory limits"),
        (errors.NOT_SUPPORTED, False, ""),  # an older kernel's controller: nothing is known before one is set
        (errors.NO_PERMISSION, True, "run the agent as root"),
        (errors.NOT_FOUND, True, ""),
        (errors.INVALID_ARGUMENT, True, ""),
        (errors.UNKNOWN, True, ""),
    ],
)
def test_how_a_device_answers_for_its_limits_decides_whether_they_are_offered(bench, code, has_dmem, said):
    bench.host.has_dmem = has_dmem
    bench.host.faults.refusals[GET] = deque([code] * 100)

    fact = bench.agent().inventory()[0]

    assert said in fact.refusals.get("memlimit", "")
    assert ("memlimit" in fact.modes) == (not said)


def test_a_cgroup_without_limits_says_nothing_about_a_device_that_answers_for_another(bench):
    own = bench.read
    bench.read = lambda path: "0::/berth.slice/agent.service\n" if path == OWN else own(path)
    bench.host.faults.refusals[GET] = deque([errors.NOT_SUPPORTED])  # the first that is asked for: the root

    fact = bench.agent().inventory()[0]

    assert "memlimit" in fact.modes


def test_limits_are_offered_also_while_mig_is_on_because_the_agent_switches_it_off(bench):
    bench.switch_on()

    assert "memlimit" in bench.agent().inventory()[0].modes


@pytest.mark.parametrize(("runtime", "is_offered"), [("systemd", True), ("plain", False)])
def test_what_the_runtime_has_is_told_to_the_driver(tmp_path, monkeypatch, runtime, is_offered):
    told: dict[str, object] = {}
    home = FullHost("n", ["h100-80gb"], tmp_path, lambda: 0)
    chosen = (
        home.runtime() if runtime == "systemd" else PlainRuntime(tmp_path, account=account, is_root=False)
    )
    monkeypatch.setattr(opening, "open_runtime", lambda *words, **more: chosen)
    monkeypatch.setattr(opening.registry, "open_real", lambda name, **facts: told.update(facts))
    words = ["--driver", "nvml", "--state", str(tmp_path), "--run-dir", str(tmp_path)]

    opening.open_host(cli.parser({}).parse_args(words), tmp_path, looks_only=True)

    assert told["has_units"] is is_offered


def test_a_limit_without_root_is_refused_with_what_to_allow(bench):
    made = bench.driver.create(bench.device, PartitionShape("memlimit", "", 0, 250, 20_000), 0, "a.1.0")
    bench.host.is_root = False

    with refused(errors.NO_PERMISSION, "CAP_SYS_ADMIN"):
        bench.driver.confine(made.uuid, UNIT)


def test_no_limit_is_the_number_of_the_binding():
    import pynvml

    assert NO_LIMIT == pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX


# Kernels that keep the limits themselves (dmem, from 6.14 on)


def test_controller_is_passed_on_down_to_the_unit_and_to_nothing_else(bench):
    bench.host.has_dmem = True

    limited(bench)
    limited(bench, "b.1.0", NEIGHBOUR, 30_000)

    assert bench.host.passing_dmem == {"", "/berth.slice"}
    assert limit(bench) == (20_000, 20_000)


def test_controller_that_is_passed_on_already_is_not_written_again(bench):
    bench.host.has_dmem = True
    limited(bench)
    bench.host.is_root = False

    with pytest.raises(NvmlLikeError, match="NO_PERMISSION"):
        limited(bench, "b.1.0", NEIGHBOUR)


def test_kernel_without_the_controller_is_left_alone(bench):
    limited(bench)

    assert bench.host.passing_dmem == set()


def test_controller_that_cannot_be_passed_on_is_refused_with_what_to_do(bench):
    bench.host.has_dmem = True
    bench.host.is_root = False

    with pytest.raises(
        NotOfferedError, match=r"let root write \+dmem into /sys/fs/cgroup/cgroup.subtree_control"
    ):
        limited(bench)

    assert (limit(bench), bench.host.passing_dmem) == (None, set())


def test_kernel_that_takes_the_word_and_does_nothing_is_not_believed(tmp_path):
    bench = Bench(tmp_path)
    bench.host.cgroups |= {UNIT}
    bench.host.has_dmem = True
    bench.host.write = lambda path, text: None
    bench.agent()

    with pytest.raises(NotOfferedError, match="the kernel did not take it"):
        limited(bench)


def test_library_itself_refuses_a_cgroup_that_the_controller_does_not_reach(bench):
    bench.host.has_dmem = True
    limited(bench)
    bench.host.passing_dmem.discard("/berth.slice")

    assert bench.driver._shares.limits.read(bench.driver._devices.fresh(bench.device), UNIT) is None
