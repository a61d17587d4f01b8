from __future__ import annotations

import pynvml
import pytest

from nodeagent.drivers.nvml.health.events import DeviceEvent, EventWatch
from nodeagent.drivers.nvml.health.faults import DeviceFaults
from nodeagent.protocol.fault_rules import standard
from nodeagent.protocol.messages import HealthFact
from tests.agent.builder import FakeTime
from tests.agent.devices import Device, Devices, process


class Ward:
    """Ailments over devices; what a device says is put into the watch as its thread would."""

    def __init__(self, *devices: Device) -> None:
        self.library, self.time = Devices(*devices), FakeTime()
        self.handles = self.library.handles()
        self.watch = EventWatch(self.library, self.handles, clock_ns=self.time, wait_ms=0)
        self.faults = DeviceFaults(self.library, self.handles, self.watch, standard(), self.time)

    def say(
        self,
        device: str,
        xid: int | None,
        gi: int | None = None,
        kind: str = "xid",
        start: int | None = None,
    ) -> None:
        self.watch._keep(DeviceEvent(device, xid, gi, None, self.time.now, kind, start=start))

    def look(self, after_s: float = 5) -> dict[str, HealthFact]:
        self.time.advance(after_s)
        facts = self.faults.facts()
        assert len({(fact.device, fact.code) for fact in facts}) == len(facts)
        return {fact.code: fact for fact in facts}


@pytest.fixture
def device() -> Device:
    return Device("GPU-1", recovery=0, ecc=0, rows=(0, 0, 0, 0), reasons=0)


@pytest.fixture
def ward(device) -> Ward:
    return Ward(device)


def test_well_device_has_nothing_to_say(ward):
    assert ward.look() == {}


def test_device_that_tells_nothing_is_not_called_ill():
    assert Ward(Device("GPU-1")).look() == {}


def test_lost_device_is_a_fact_until_it_answers_again_and_others_are_well():
    lost = Device("GPU-1")
    ward = Ward(lost, Device("GPU-2"))
    ward.look()

    lost.is_lost = True
    (fact,) = ward.look().values()
    lost.is_lost = False

    assert (fact.device, fact.code, fact.severity, fact.action) == ("GPU-1", "79", "critical", "reboot_node")
    assert ward.look() == {}


def test_lost_device_that_also_said_so_is_one_fact(ward, device):
    ward.look()
    ward.say("GPU-1", 79)
    ward.say("GPU-1", None, kind="lost")
    device.is_lost = True

    facts = ward.look()
    device.is_lost = False

    assert list(facts) == ["79"]
    assert "still so" in facts["79"].detail
    assert ward.look() == {}


def test_states_of_a_device_are_facts_while_they_are_read(ward, device):
    device.rows, device.reasons = (0, 1, 1, 0), pynvml.nvmlClocksEventReasonHwThermalSlowdown
    ill = ward.look()
    device.rows, device.reasons = (0, 1, 0, 0), 0

    assert {code: fact.severity for code, fact in ill.items()} == {
        "row_remap_pending": "warning",
        "thermal": "warning",
    }
    assert ward.look() == {}


def test_repair_that_failed_asks_for_another_board(ward, device):
    device.rows = (1, 2, 1, 1)

    (fact,) = ward.look().values()

    assert (fact.code, fact.severity, fact.action) == ("row_remap_failed", "critical", "replace")


@pytest.mark.parametrize(
    ("number", "code", "action"),
    [
        (1, "recovery_gpu_reset", "reset_gpu"),
        (2, "recovery_node_reboot", "reboot_node"),
        (3, "recovery_drain_p2p", "drain"),
        (4, "recovery_drain_and_reset", "reset_gpu"),
        (5, "recovery_imex_domain", "drain"),
        (6, "recovery_bus_reset", "reset_gpu"),
        (7, "recovery_system_reboot", "reboot_node"),
        (99, "recovery_unknown", "drain"),
    ],
)
def test_what_the_driver_asks_for_is_told(ward, device, number, code, action):
    device.recovery = number

    (fact,) = ward.look().values()

    assert (fact.code, fact.action) == (code, action)


def test_uncorrected_errors_count_only_when_they_grow(ward, device):
    device.ecc = 3
    before = ward.look()
    device.ecc = 5
    grown = ward.look()
    device.ecc = 0

    assert before == {}
    assert "2 since" in grown["ecc_uncorrected"].detail
    assert ward.look() == {}


def test_fault_of_a_program_is_told_once_over_and_ends_with_the_program(ward, device):
    device.running = [process(11, 10, gi=3), process(12, 10, gi=4)]
    for _ in range(3):
        ward.say("GPU-1", 31, gi=3)

    told = ward.look()["31"]
    device.running = device.running[1:]
    soon, later = ward.look(30), ward.look(60)

    assert "XID 31, 3 times, last at 1970-01-01 00:16:40 UTC, GPU instance 3" in told.detail
    assert (told.severity, told.action) == ("info", "restart_workload")
    assert list(soon) == ["31"]
    assert later == {}


def test_fault_inside_slices_names_their_places_and_drops_each_with_its_programs(ward, device):
    device.running = [process(11, 10, gi=3), process(12, 10, gi=4)]
    ward.say("GPU-1", 94, gi=3, start=4)
    ward.say("GPU-1", 94, gi=4, start=0)

    both = ward.look()["94"]
    device.running = device.running[1:]
    one = ward.look(60)["94"]
    device.running = []

    assert both.starts == (0, 4)
    assert one.starts == (0,), "the program at 4 has ended, the one at 0 has not"
    assert ward.look() == {}


def test_fault_that_strikes_another_slice_does_not_forget_the_programs_of_the_first(ward, device):
    device.running = [process(11, 10, gi=3), process(12, 10, gi=4)]
    ward.say("GPU-1", 31, gi=3, start=4)
    ward.look(50)
    ward.say("GPU-1", 31, gi=4, start=0)
    device.running = device.running[:1]

    assert ward.look(65)["31"].starts == (0, 4), "what struck at 0 is told once before it goes"
    assert ward.look()["31"].starts == (4,)


@pytest.mark.parametrize("xid", [48, 62, 79, 95, 109, 4711])
def test_fault_of_the_whole_device_names_no_slice_although_its_event_does(ward, xid):
    ward.say("GPU-1", xid, gi=3, start=4)

    assert ward.look()[str(xid)].starts is None


@pytest.mark.parametrize(("gi", "start"), [(None, None), (4, None)])
def test_fault_whose_place_is_unknown_concerns_everybody_on_the_device(ward, gi, start):
    ward.say("GPU-1", 94, gi=3, start=4)
    ward.say("GPU-1", 94, gi=gi, start=start)

    assert ward.look()["94"].starts is None


def test_fault_of_a_program_that_lives_on_is_dropped_after_quiet(ward, device):
    device.running = [process(11, 10)]
    ward.say("GPU-1", 13)

    assert list(ward.look(300)) == ["13"]
    assert ward.look(301) == {}


def test_fault_of_a_program_is_told_even_when_it_is_gone_at_once(ward):
    ward.say("GPU-1", 43)

    assert list(ward.look(3600)) == ["43"]
    assert ward.look() == {}


def test_fault_that_needs_a_reset_stays_for_hours(ward):
    ward.look()
    ward.say("GPU-1", 95)

    assert ward.look()["95"].severity == "critical"
    assert list(ward.look(50_000)) == ["95"]


def test_reset_is_seen_when_the_recovery_action_goes(ward, device):
    ward.look()
    ward.say("GPU-1", 95)
    device.recovery = 1
    ill = ward.look()
    device.recovery = 0

    assert set(ill) == {"95", "recovery_gpu_reset"}
    assert ward.look() == {}


def test_reset_is_seen_when_the_device_is_listed_anew(ward, device):
    ward.look()
    ward.say("GPU-1", 119)
    ward.look()

    ward.handles["GPU-1"] = Device("GPU-1", recovery=0, ecc=0)

    assert ward.look() == {}


def test_reset_is_seen_when_counts_start_again(ward, device):
    device.ecc = 7
    ward.look()
    ward.say("GPU-1", 48)
    ward.look()

    device.ecc = 0

    assert ward.look() == {}


def test_fault_and_reset_between_two_looks_is_told_once(ward):
    ward.look()
    ward.say("GPU-1", 62)
    ward.handles["GPU-1"] = Device("GPU-1", recovery=0)

    assert list(ward.look()) == ["62"]
    assert ward.look() == {}


def test_new_fault_after_a_reset_counts_anew(ward, device):
    ward.look()
    device.recovery = 1
    ward.look()
    device.recovery = 0
    ward.look()

    ward.say("GPU-1", 109)
    ward.look()

    assert list(ward.look(10_000)) == ["109"]


def test_fault_that_only_a_person_ends_outlives_a_reset(ward, device):
    ward.look()
    ward.say("GPU-1", 61)
    ward.look()
    device.recovery = 1
    ward.look()
    device.recovery = 0

    assert list(ward.look(100_000)) == ["61"]


def test_code_that_no_table_knows_is_a_warning_to_watch(ward):
    ward.say("GPU-1", 4711)

    fact = ward.look()["4711"]

    assert (fact.severity, fact.action) == ("warning", "watch")
    assert "XID 4711" in fact.detail


def test_events_that_nobody_hears_are_a_fact_of_the_node(ward):
    ward.library.missing.add("nvmlEventSetCreate")
    ward.watch._wanted.set()
    ward.watch._sleep = lambda seconds: None
    ward.watch.turn()

    fact = ward.look()["events_unwatched"]

    assert (fact.device, fact.severity) == ("", "warning")
    assert "gives no events" in fact.detail


def test_device_without_events_among_others_is_a_remark(ward, device):
    ward = Ward(device, Device("GPU-2", events=0))
    ward.watch._wanted.set()
    ward.watch.turn()

    fact = ward.look()["events_unwatched"]

    assert (fact.device, fact.severity) == ("", "info")
    assert "GPU-2" in fact.detail


def test_event_that_people_end_is_told_in_the_same_words_until_it_happens_anew(ward):
    ward.look()
    ward.say("GPU-1", 54)
    first = ward.look()["54"]
    day_after = ward.look(after_s=86_400)["54"]
    ward.say("GPU-1", 54)

    assert day_after == first
    assert ward.look()["54"].detail != first.detail
