from __future__ import annotations

from portal.telemetry import ring
from portal.telemetry.frames import DeviceNow, Frame, SlotNow, blank, lease_now, pack, unpack
from portal.telemetry.ring import Readings, Series


def slot(lease: str = "lse-a", *, start: int = 0, util: float | None = 40.0, whole: bool = False) -> SlotNow:
    return SlotNow(lease, 7, "GPU-1", start, 1, whole, util, 1000, 10_000, "gpm")


def frame(seq: int, *slots: SlotNow, at: float | None = None, boot: str = "b1", node: str = "n1") -> Frame:
    device = DeviceNow("GPU-1", 55.0, 2000, 80_000, 310.0, 61.0, "nvml")
    return Frame(node, 1000.0 + seq if at is None else at, boot, seq, (device,), slots)


def test_a_ring_keeps_the_last_five_minutes_in_order() -> None:
    series = Series()

    for second in range(1000, 1000 + 700):
        series.push(second, float(second % 100), second)

    rows = series.rows(since=0)
    assert len(rows) == 300
    assert [row[0] for row in rows] == list(range(1400, 1700))
    assert rows[-1] == (1699, 99.0, 1699)


def test_unknown_stays_unknown_in_a_ring() -> None:
    series = Series()

    series.push(1, None, 0)
    series.push(2, 0.0, None)

    assert series.rows(since=0) == [(1, None, 0), (2, 0.0, None)]


def test_a_frame_that_was_overtaken_changes_nothing() -> None:
    seen = Readings()
    seen.take(frame(5, slot(util=50.0)))

    late = seen.take(frame(4, slot(util=99.0), at=1004.5))

    assert late is None
    assert seen.leases["lse-a"].util == 50.0


def test_a_reboot_starts_the_count_anew_and_the_old_boot_is_not_believed_again() -> None:
    seen = Readings()
    seen.take(frame(900, slot(util=10.0)))

    rebooted = seen.take(frame(1, slot(util=20.0), at=2000.0, boot="b2"))
    ghost = seen.take(frame(901, slot(util=30.0), at=2001.0))

    assert rebooted == {"lse-a"}
    assert ghost is None
    assert seen.leases["lse-a"].util == 20.0


def test_a_lease_that_left_its_node_is_forgotten_and_named_once() -> None:
    seen = Readings()
    seen.take(frame(1, slot("lse-a"), slot("lse-b", start=1)))

    touched = seen.take(frame(2, slot("lse-b", start=1)))

    assert touched == {"lse-a", "lse-b"}
    assert "lse-a" not in seen.leases
    assert seen.take(frame(3, slot("lse-b", start=1))) == {"lse-b"}


def test_a_gang_with_one_unknown_slot_has_no_mean_but_keeps_its_slots() -> None:
    both = (slot(util=40.0), slot(start=1, util=None))

    now = lease_now(frame(1, *both), both)

    assert now.util is None
    assert [s.util for s in now.slots] == [40.0, None]
    assert now.memory_used_mib == 2000


def test_power_is_known_only_for_whole_boards() -> None:
    assert lease_now(frame(1), [slot(whole=True)]).power_w == 310.0
    assert lease_now(frame(1), [slot()]).power_w is None


def test_memory_is_bounded_whatever_nodes_say(monkeypatch) -> None:
    monkeypatch.setattr(ring, "MAX_SERIES", 10)
    monkeypatch.setattr(ring, "MAX_NODES", 3)
    seen = Readings()

    for i in range(50):
        seen.take(frame(1, slot(f"lse-{i}"), node=f"n{i}", at=1000.0 + i))

    assert len(seen._series) == 10
    assert len(seen.frames) == 3
    assert len(seen.leases) == 3


def test_what_is_old_is_forgotten() -> None:
    seen = Readings()
    seen.take(frame(1, slot()))

    seen.prune(now=1001.0 + 4000)

    assert not seen.frames
    assert not seen.leases
    assert len(seen._series) == 0


def test_a_frame_survives_the_wire_and_blanking_leaves_only_sizes() -> None:
    import json

    sent = frame(3, slot())

    assert unpack(json.loads(pack(sent))) == sent
    nothing = blank(sent)
    assert nothing.devices[0][1:] == (None, None, 80_000, None, None, "nvml")
    assert nothing.slots[0].util is None
    assert nothing.slots[0].memory_mib == 10_000
