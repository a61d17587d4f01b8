from __future__ import annotations

import json

from nodeagent.protocol.messages import SlotSample
from portal.telemetry import payloads
from portal.telemetry.frames import DeviceNow, ExtraFigures, Frame, SlotNow, blank, lease_now, pack, unpack
from portal.telemetry.ingest import _slot
from portal.telemetry.roster import LeaseFacts, NodeFacts, Roster, SlotPlace

PLACE = SlotPlace("GPU-1", 0, 1, 9984, is_whole=False)
ROSTER = Roster(leases={"lse-1": LeaseFacts(1, "lse-1", 7, "gpu-01", {("GPU-1", 0): PLACE})})
NODE = NodeFacts(1, "gpu-01", None, {})
SAID = SlotSample(
    "lse-1", "GPU-1", 0, 40.0, 1000, 9984, "gpm", sm_percent=31.26, bandwidth_percent=9.0, power_w=55.55,
    sources={"sm_percent": "gpm", "power_w": "estimate", "unheard_of": "x"},
)  # fmt: skip


def slot(start: int = 0, *, more: ExtraFigures | None = None, is_whole: bool = False) -> SlotNow:
    return SlotNow("lse-1", 7, "GPU-1", start, 1, is_whole, 40.0, 1000, 9984, "gpm", more)


def frame(*slots: SlotNow) -> Frame:
    device = DeviceNow("GPU-1", 50.0, 2000, 81559, 300.0, 60.0, "nvml")
    return Frame("gpu-01", 100.0, "boot-1", 1, (device,), slots)


def test_what_a_card_tells_beside_utilisation_travels_with_its_sources() -> None:
    taken = _slot(ROSTER, NODE, SAID)

    assert taken is not None
    assert taken.more == ExtraFigures(31.3, None, 9.0, 55.5, {"sm": "gpm", "power_w": "estimate"})
    assert unpack(json.loads(pack(frame(taken)))) == frame(taken)


def test_a_frame_of_a_card_that_tells_nothing_more_costs_five_characters_a_slot() -> None:
    plain = _slot(ROSTER, NODE, SlotSample("lse-1", "GPU-1", 0, 40.0, 1000, 9984, "gpm"))

    assert plain is not None
    assert plain.more is None
    before = json.dumps(plain[:-1], separators=(",", ":"))
    assert len(json.dumps(plain, separators=(",", ":"))) == len(before) + len(",null")


def test_frames_without_the_newer_field_are_read_as_before() -> None:
    old = json.loads(pack(frame(slot())))
    old[5][0].pop()

    assert unpack(old) == frame(slot())


def test_the_power_of_a_part_is_an_estimate_and_says_so() -> None:
    more = ExtraFigures(None, None, None, 55.5, {"power_w": "estimate"})

    now = lease_now(frame(slot(more=more)), [slot(more=more)])

    assert (now.power_w, now.more and now.more.sources) == (55.5, {"power_w": "estimate"})


def test_the_power_of_a_whole_board_stays_the_measured_one() -> None:
    place = SlotPlace("GPU-1", 0, 8, 81559, is_whole=True)
    roster = Roster(leases={"lse-1": LeaseFacts(1, "lse-1", 7, "gpu-01", {("GPU-1", 0): place})})
    taken = _slot(roster, NODE, SAID)
    assert taken is not None

    now = lease_now(frame(taken), [taken])

    assert now.power_w == 300.0
    assert now.more is not None
    assert now.more.power_w is None


def test_one_slot_that_tells_nothing_leaves_the_lease_unknown() -> None:
    slots = [slot(0, more=ExtraFigures(30.0, 20.0, None, 50.0, {})), slot(1)]

    now = lease_now(frame(*slots), slots)

    assert now.more == ExtraFigures(None, None, None, None, {})
    assert now.power_w is None


def test_several_slots_share_one_mean_and_one_sum() -> None:
    slots = [
        slot(0, more=ExtraFigures(30.0, 0.0, 5.0, 50.0, {"sm": "gpm"})),
        slot(1, more=ExtraFigures(10.0, 0.0, 7.0, 25.0, {"sm": "dcgm"})),
    ]

    now = lease_now(frame(*slots), slots)

    assert now.more == ExtraFigures(20.0, 0.0, 6.0, 75.0, {"sm": "dcgm, gpm"})


def test_a_socket_is_told_null_for_what_is_unknown_or_old() -> None:
    now = lease_now(frame(slot()), [slot(more=ExtraFigures(30.0, None, None, None, {"sm": "gpm"}))])

    fresh = payloads.lease_data(now, [], memory_mib=None, is_fresh=True)
    old = payloads.lease_data(now, [], memory_mib=None, is_fresh=False)

    assert (fresh["sm"], fresh["tensor"], fresh["sources"]) == (30.0, None, {"sm": "gpm"})
    assert (old["sm"], old["sources"]) == (None, {})
    assert blank(frame(slot(more=now.more))).slots[0].more is None
