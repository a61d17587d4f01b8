from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.protocol.messages import HealthFact, PartitionFact
from nodeagent.reconcile.goals import FenceError
from tests.agent.builder import SimulatedNode, lease


def test_mig_lease_becomes_ready_with_the_uuid_of_its_slice(node):
    node.desire(lease("a", node.mig("2g.20gb", 4)))

    report = node.reports()["a"]

    assert report.phase == "ready"
    assert report.access[0].partition.startswith("MIG-")
    assert report.access[0].env["CUDA_VISIBLE_DEVICES"] == report.access[0].partition
    assert node.partitions() == {("2g.20gb", 4, "a")}


def test_whole_device_switches_mig_off_when_the_last_slice_is_gone(node):
    node.desire(lease("slice", node.mig("1g.10gb", 0)))
    node.desire(lease("whole", node.whole()))

    assert node.phases() == {"slice": "gone", "whole": "ready"}
    assert node.reports()["whole"].access[0].partition == node.device()
    assert node.driver.inventory()[0].mig_enabled is False


def test_seven_slices_and_a_board_next_door_are_one_batch(make_node):
    node = make_node(count=2)
    slices = [lease(f"s{i}", node.mig("1g.10gb", i)) for i in range(7)]

    node.desire(*slices, lease("whole", node.whole(1)))

    assert set(node.phases().values()) == {"ready"}


def test_gang_is_ready_only_when_every_place_is_made(make_node):
    node = make_node(count=2)
    node.driver.add_foreign(node.device(1), "7g.80gb", 0)
    node.look()

    node.desire(lease("gang", node.mig("1g.10gb", 0, 0), node.mig("1g.10gb", 0, 1)))

    report = node.reports()["gang"]
    assert (report.phase, report.code, report.access) == ("failed", "conflict", ())


def test_leases_not_wanted_any_more_are_removed_before_others_are_made(node):
    node.desire(lease("old", node.mig("7g.80gb", 0)))
    node.time.advance(90)

    node.desire(lease("new", node.mig("3g.40gb", 4)))

    old = node.reports()["old"]
    assert (old.phase, old.active_ms, old.reason) == ("gone", 90_000, "withdrawn")
    assert node.partitions() == {("3g.40gb", 4, "new")}


def test_live_leases_are_not_touched_by_changes_around_them(node):
    node.desire(lease("stays", node.mig("1g.10gb", 0)), lease("goes", node.mig("1g.10gb", 1)))
    before = [fact for fact in node.standing() if fact.start == 0]

    node.desire(lease("stays", node.mig("1g.10gb", 0)), lease("comes", node.mig("2g.20gb", 2)))

    assert before[0] in node.standing()
    assert node.phases()["stays"] == "ready"


def test_gone_lease_is_forgotten_after_the_portal_stored_it(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.desire()
    assert node.phases() == {"a": "gone"}

    node.acknowledge()

    assert node.phases() == {}


def test_gone_lease_is_told_again_until_acknowledged_even_after_a_restart(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.time.advance(3)
    node.desire()

    node.start()

    assert node.reports()["a"].active_ms == 3000


def test_lease_ends_by_itself_when_its_time_is_over(node):
    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=60))

    node.pass_time(61)

    report = node.reports()["a"]
    assert (report.phase, report.reason, report.active_ms) == ("gone", "expired", 60_000)


def test_expired_lease_is_not_made_again_while_it_stays_desired(node):
    wanted = lease("a", node.mig("1g.10gb", 0), remaining_s=60)
    node.desire(wanted)
    node.pass_time(61)

    node.desire(wanted)
    node.acknowledge()
    node.desire(wanted)

    assert node.phases() == {"a": "gone"}
    assert node.standing() == []


def test_lease_that_has_no_time_left_is_never_made(node):
    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=0))

    assert node.reports()["a"].active_ms == 0
    assert node.phases() == {"a": "gone"}


def test_extension_moves_the_end(node):
    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=60))
    node.pass_time(30)

    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=600))
    node.pass_time(300)

    assert node.phases() == {"a": "ready"}


def test_time_spent_making_a_lease_is_not_taken_from_its_holder(node):
    node.faults.latency_s["create"] = 20.0
    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=60))

    node.pass_time(59)
    assert node.phases() == {"a": "ready"}
    node.pass_time(2)

    assert node.reports()["a"].active_ms == 60_000


def test_higher_generation_replaces_the_lower_one(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))

    node.desire(lease("a", node.mig("1g.10gb", 0), generation=2))

    reports = node.reconciler.lease_reports(99)
    assert {(r.generation, r.phase, r.reason) for r in reports} == {
        (1, "gone", "superseded"),
        (2, "ready", ""),
    }


def test_frame_with_two_generations_of_one_lease_keeps_the_newer(node):
    node.desire(
        lease("a", node.mig("1g.10gb", 1), generation=2), lease("a", node.mig("1g.10gb", 0), generation=1)
    )

    assert node.partitions() == {("1g.10gb", 1, "a")}


def test_busy_slice_is_waited_for_and_killed_only_after_the_grace(node):
    node.desire(lease("a", node.mig("1g.10gb", 0), grace_s=30))
    uuid = node.reports()["a"].access[0].partition
    node.faults.stubborn[uuid] = -1

    node.desire()
    node.pass_time(29)
    waiting = node.reports()["a"]
    node.pass_time(10)

    assert (waiting.phase, waiting.code, waiting.active_ms) == ("draining", "in_use", 0)
    assert node.phases() == {"a": "gone"}


def test_new_lease_waits_for_the_old_one_on_its_place(node):
    node.desire(lease("old", node.mig("1g.10gb", 0), grace_s=10))
    node.faults.stubborn[node.reports()["old"].access[0].partition] = -1

    node.desire(lease("new", node.mig("1g.10gb", 0)))
    assert node.phases() == {"old": "draining", "new": "preparing"}
    node.pass_time(20)

    assert node.phases() == {"old": "gone", "new": "ready"}


def test_share_waits_for_room_that_is_being_cleared(make_node):
    node = make_node("l40s-48gb")
    node.desire(lease("old", node.share("mps", 800, 40_000), grace_s=10))
    node.faults.stubborn[node.reports()["old"].access[0].partition] = 3

    node.desire(lease("new", node.share("mps", 500, 20_000)))
    node.pass_time(20)

    assert node.phases() == {"old": "gone", "new": "ready"}


def test_in_use_is_tried_again_and_succeeds(node):
    node.faults.refusals["create"] = deque([errors.IN_USE] * 4)

    node.desire(lease("a", node.mig("1g.10gb", 0)))
    assert node.phases() == {"a": "preparing"}
    node.pass_time(5)

    assert node.phases() == {"a": "ready"}


def test_what_stays_in_use_fails_its_lease_after_about_a_minute_and_few_tries(node, monkeypatch):
    tried: list[int] = []

    def create(*words: object) -> PartitionFact:
        tried.append(node.time.now)
        raise NvmlLikeError(errors.IN_USE, "somebody has it open")

    monkeypatch.setattr(node.driver, "create", create)
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.pass_time(45)
    assert node.phases() == {"a": "preparing"}

    node.pass_time(30)

    assert (node.reports()["a"].phase, node.reports()["a"].code) == ("failed", "in_use")
    assert 10 < len(tried) < 20


def crowd(node: SimulatedNode, *devices: str) -> None:
    node.reconciler.health.crowded = frozenset(devices)


def test_a_whole_device_is_not_given_away_while_programs_of_no_lease_run_on_it(node):
    crowd(node, node.device())

    node.desire(lease("a", node.whole()))
    node.pass_time(40)
    assert node.phases() == {"a": "preparing"}
    crowd(node)
    node.pass_time(6)

    assert node.phases() == {"a": "ready"}


def test_a_whole_device_that_stays_crowded_fails_its_lease_with_what_to_do(node):
    crowd(node, node.device())

    node.desire(lease("a", node.whole()))
    node.pass_time(75)

    said = node.reports()["a"]
    assert (said.phase, said.code) == ("failed", "in_use")
    assert "--orphans kill" in said.detail
    assert node.partitions() == set()


def test_a_slice_of_a_crowded_device_and_its_whole_neighbour_are_given(make_node):
    node = make_node(count=2)
    crowd(node, node.device())

    node.desire(lease("slice", node.mig("1g.10gb", 0)), lease("whole", node.whole(1)))

    assert node.phases() == {"slice": "ready", "whole": "ready"}


def test_foreign_partition_is_reported_respected_and_never_removed(node):
    node.driver.add_foreign(node.device(), "3g.40gb", 0)
    node.look()

    node.desire(lease("over", node.mig("1g.10gb", 2)), lease("beside", node.mig("3g.40gb", 4)))
    node.desire()

    assert node.partitions() == {("3g.40gb", 0, "")}


def test_identical_foreign_partition_is_not_taken_over(node):
    node.driver.add_foreign(node.device(), "1g.10gb", 0)
    node.look()

    node.desire(lease("a", node.mig("1g.10gb", 0)))
    failed = node.reports()["a"]
    node.desire()

    assert (failed.phase, failed.code) == ("failed", "conflict")
    assert node.partitions() == {("1g.10gb", 0, "")}


def test_lost_gpu_fails_its_leases_and_spares_the_others(make_node):
    node = make_node(count=2)
    node.desire(lease("a", node.mig("1g.10gb", 0, 0)), lease("b", node.mig("1g.10gb", 0, 1)))
    node.time.advance(7)

    node.driver.lose(node.device(0))
    node.reconciler.observe_health(tuple(node.driver.health()), node.time.now)

    reports = node.reports()
    assert (reports["a"].phase, reports["a"].code, reports["a"].active_ms) == ("failed", "gpu_lost", 7000)
    assert reports["b"].phase == "ready"


def test_partition_that_vanished_fails_its_lease(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    uuid = node.reports()["a"].access[0].partition
    node.driver.detach(uuid, kill=True)
    node.driver.processes(uuid)
    node.driver.destroy(uuid)

    node.look()

    assert (node.phases(), node.reports()["a"].code) == ({"a": "failed"}, "partition_lost")


def test_device_of_another_node_fails_the_lease_and_nothing_else(node):
    stray = node.mig("1g.10gb", 0)
    stray = type(stray)("GPU-elsewhere", *[getattr(stray, f) for f in stray.__slots__[1:]])

    node.desire(lease("stray", stray), lease("ok", node.mig("1g.10gb", 0)))
    failed = node.reports()["stray"]
    node.desire(lease("ok", node.mig("1g.10gb", 0)))

    assert (failed.phase, failed.code) == ("failed", "unknown_device")
    assert node.phases() == {"stray": "gone", "ok": "ready"}


def test_illegal_position_fails_with_the_drivers_word(node):
    node.desire(lease("a", node.mig("3g.40gb", 2)))

    report = node.reports()["a"]
    assert (report.phase, report.code) == ("failed", "refused_by_driver")
    assert "INVALID_ARGUMENT" in report.detail


def test_mig_mode_that_never_changes_fails_in_the_end(make_node):
    node = make_node("a100-80gb")
    device = node.driver._devices[node.device()]
    device.gpu.clients = 1

    node.desire(lease("a", node.mig("1g.10gb", 0)))
    assert node.phases() == {"a": "preparing"}
    node.pass_time(120)

    assert node.reports()["a"].code == "mig_mode_refused"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"node": "gpu-99"}, "wrong_node"),
        ({"epoch": 0}, "old_epoch"),
        ({"back": 1}, "old_revision"),
    ],
)
def test_fences_refuse_and_change_nothing(node: SimulatedNode, change, code):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    before = node.phases()
    node.revision -= 1 + change.pop("back", 0)

    with pytest.raises(FenceError) as refused:
        node.desire(**change)

    assert refused.value.code == code
    assert node.phases() == before


def test_newer_epoch_starts_its_own_count_of_revisions(node):
    node.revision = 40
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.revision = 0

    node.desire(lease("a", node.mig("1g.10gb", 0)), epoch=2)

    assert node.phases() == {"a": "ready"}


def test_carried_out_revision_lags_while_work_is_open(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    done = node.reconciler.carried_out
    node.faults.stubborn[node.reports()["a"].access[0].partition] = -1
    node.desire()

    assert (done, node.reconciler.carried_out, node.reconciler.ledger.revision) == (1, 1, 2)


def test_full_disk_keeps_old_work_ends_leases_and_takes_nothing_new(node, monkeypatch):
    node.desire(lease("old", node.mig("1g.10gb", 0)), lease("stays", node.mig("1g.10gb", 2)))

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nodeagent.reconcile.journal._write_all", full)
    node.desire(lease("stays", node.mig("1g.10gb", 2)), lease("new", node.mig("1g.10gb", 1)))
    assert node.reconciler.lease_reports(50) is None
    assert {(fact.start) for fact in node.standing()} == {2}
    assert node.reconciler.health_facts()[-1].code == "journal_unwritable"

    monkeypatch.undo()
    node.pass_time(6)

    assert node.phases() == {"old": "gone", "stays": "ready", "new": "ready"}
    assert node.reconciler.health_facts() == ()


def test_driver_that_breaks_fails_the_lease_not_the_agent(node, monkeypatch):
    monkeypatch.setattr(node.driver, "create", lambda *a, **k: 1 / 0)

    node.desire(lease("a", node.mig("1g.10gb", 0)))

    assert node.reports()["a"].code == "driver_error"


def test_health_that_did_not_change_is_no_news(node):
    node.reports()
    fact = HealthFact(node.device(), "63", "warning", "row remap pending")

    node.reconciler.observe_health((fact,), node.time.now)
    first, node.reconciler.changed = node.reconciler.changed, False
    node.reconciler.observe_health((fact,), node.time.now)

    assert (first, node.reconciler.changed) == (True, False)


def test_desired_state_that_overlaps_itself_is_refused_whole_and_told(node):
    first, second = lease("first", node.mig("1g.10gb", 0)), lease("second", node.mig("2g.20gb", 0))
    node.desire(first)

    with pytest.raises(FenceError) as refused:
        node.desire(first, second)

    assert refused.value.code == "overlapping_slots"
    assert node.phases() == {"first": "ready"}
    assert [fact.code for fact in node.reconciler.health_facts()] == ["desired_refused"]


def test_refused_frame_is_forgotten_with_the_next_sound_one(node):
    with pytest.raises(FenceError):
        node.desire(lease("a", node.mig("1g.10gb", 0), node.mig("7g.80gb", 0)))

    node.desire(lease("a", node.mig("1g.10gb", 0)))

    assert node.reconciler.health_facts() == ()


def test_lease_that_has_ended_here_is_not_made_again(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.desire()
    node.reports()
    node.acknowledge()

    node.desire(lease("a", node.mig("1g.10gb", 0)))
    again = node.reports()["a"]
    node.start()
    node.desire(lease("a", node.mig("1g.10gb", 0)), lease("b", node.mig("1g.10gb", 1), generation=3))

    assert (again.phase, again.code) == ("failed", "lease_ended")
    assert node.phases() == {"a": "failed", "b": "ready"}


def test_ended_leases_are_remembered_over_a_compacted_journal(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.desire()
    node.reports()
    node.acknowledge()
    node.reconciler.ledger.save()

    node.start()
    node.start()

    assert node.reconciler.ledger.has_ended(("a", 1))
    assert not node.reconciler.ledger.has_ended(("a", 2))


def test_two_teams_never_share_one_mps_device(make_node):
    node = make_node("l40s-48gb")
    mine = lease("a", node.share("mps", 400, 9000))
    theirs = replace(lease("b", node.share("mps", 300, 8000)), team="speech")

    node.desire(mine, theirs)
    both = node.reports()["b"]
    node.desire(replace(theirs, generation=2))

    assert (both.phase, both.code) == ("failed", "other_team")
    assert node.phases()["b"] == "ready"
