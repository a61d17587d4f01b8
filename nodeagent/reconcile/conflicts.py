"""Whether a place can be made now: not while another lease, or something that is not ours, stands in its way."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from nodeagent.protocol.messages import PartitionFact
from nodeagent.reconcile.lease_records import DRAINING, GONE, HELD, TRIES, LeasePlace, LeaseRecord
from nodeagent.reconcile.steps import StepRefusal

OTHERS_RUN: Final = "programs of no lease run on it: end them, or let the agent do so with --orphans kill"


def obstacle(
    record: LeaseRecord,
    place: LeasePlace,
    on: Sequence[tuple[LeaseRecord, LeasePlace]],
    foreign: Iterable[PartitionFact],
    crowded: Collection[str] = (),
) -> StepRefusal | bool:
    """Return a refusal when a place is taken for good, True when it will become free, else False.

    ``on`` are all places of this device, ``foreign`` the partitions on it that no lease accounts for. A whole device
    that is among the ``crowded``, where programs of no lease run, may become free for about a minute.
    """
    must_wait = False
    for other_record, other in on:
        if other is place or other.is_cleared:
            continue
        if other.overlaps(place):
            if other_record.phase == DRAINING:
                must_wait = True
            elif other.is_made and other_record.phase != GONE:
                return StepRefusal("conflict", f"lease {other_record.lease} holds that place")
        elif _is_of_strangers(record, place, other_record, other):
            if other_record.phase == DRAINING:
                must_wait = True
            else:
                return StepRefusal(
                    "other_team",
                    f"team {other_record.team} shares this device through MPS, where a fault of one hits all; "
                    "only leases of one team share a device in this mode",
                )
    for fact in foreign:
        if _is_in_the_way(fact, place):
            return StepRefusal(
                "conflict", f"{fact.uuid} stands there and is not ours; remove it or cordon the device"
            )
    if must_wait or place.slot.mode != "exclusive" or place.slot.device not in crowded:
        return must_wait
    return True if place.tries < TRIES else StepRefusal("in_use", OTHERS_RUN)


def _is_of_strangers(
    record: LeaseRecord, place: LeasePlace, other_record: LeaseRecord, other: LeasePlace
) -> bool:
    """Say whether two shares would put two teams into the one fault domain of an MPS server."""
    is_mps = place.slot.mode == other.slot.mode == "mps"
    is_there = other.is_made and (other_record.phase in HELD or other_record.phase == DRAINING)
    return (
        is_mps and is_there and bool(record.team and other_record.team) and record.team != other_record.team
    )


def _is_in_the_way(fact: PartitionFact, place: LeasePlace) -> bool:
    """Say whether a partition that is not ours keeps a place from being made."""
    mode = place.slot.mode
    if mode == "mig" and fact.profile and fact.size:
        return fact.start < place.slot.start + place.slot.size and place.slot.start < fact.start + fact.size
    return not (fact.profile == mode and not fact.size)
