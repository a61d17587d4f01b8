"""Long beside long, short beside short, among what cannot be stopped once it runs.

Such a request keeps its boards to its end. Where long ones stand among short ones a node seldom falls idle as a whole,
and what needs whole nodes waits for weeks of others' work on single boards. So where the policy says so, what is
expected to run for more than ``LONG_S`` goes to the node with most boards of its like, and what is shorter to one with
fewest of them. An order without lengths knows no groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime

from scheduler.engine.model import Claim, Grant, Learned, Running, Snapshot
from scheduler.engine.order.ranking import Burdened, LeaseColumns
from scheduler.engine.policy import PolicyRules, Preempting, heeds_scores

LONG_S = 21_600.0
LONG, SHORT, ANY = 1, -1, 0
_Told = tuple[int, datetime]


class LengthGroups:
    """Which boards are held by long requests, and to which group a claim belongs.

    Rooms of one turn share it: whoever changes ``long_boards`` tells each room that these boards changed.
    """

    def __init__(self) -> None:
        self.long_boards: set[int] = set()
        self._order: Burdened | None = None
        self._preempting = Preempting()
        self._learned = Learned()
        # By lease: what its length was reckoned from, and whether that is long.
        self._leases: dict[int, tuple[_Told, bool]] = {}

    def of(self, claim: Claim) -> int:
        """LONG or SHORT; ANY where it does not matter."""
        if self._order is None or claim.mode != "exclusive" or heeds_scores(claim, self._preempting):
            return ANY
        length_s = self._order.length(claim)
        return ANY if length_s is None else LONG if length_s > LONG_S else SHORT

    def note(self, grant: Grant, claim: Claim) -> None:
        """Hear of a grant before its boards are taken."""
        if self.of(claim) == LONG:
            self.long_boards.update(slot.device_id for slot in grant.slots)

    def forget(self, device_id: int) -> None:
        """Hear that nobody holds a board any more."""
        self.long_boards.discard(device_id)

    def sort(self, snapshot: Snapshot, order: Burdened, policy: PolicyRules) -> set[int]:
        """Find the groups of a turn; the boards that are in another one than before."""
        self._order, self._preempting = order, policy.preempting
        if snapshot.learned is not self._learned:
            self._learned, self._leases = snapshot.learned, {}
        found, new = {}, defaultdict(list)
        for lease in snapshot.running:
            told, known = (lease.predicted_s, lease.until), self._leases.get(lease.lease_id)
            if known is not None and known[0] == told:
                found[lease.lease_id] = known
            elif not lease.is_extra and not heeds_scores(lease, policy.preempting):
                new[lease.claim_id].append(lease)
        for leases, is_long in zip(new.values(), _are_long(new.values(), order), strict=True):
            found.update((lease.lease_id, ((lease.predicted_s, lease.until), is_long)) for lease in leases)
        self._leases = found
        long = {lease_id for lease_id, (_, is_long) in found.items() if is_long}
        boards = {held.device_id for held in snapshot.held if held.lease_id in long}
        changed = boards ^ self.long_boards
        self.long_boards.symmetric_difference_update(changed)
        return changed


def _are_long(lives: Collection[Sequence[Running]], order: Burdened) -> list[bool]:
    if not lives:
        return []
    columns = LeaseColumns()
    columns.change([], lives)
    return [bool(length_s > LONG_S) for length_s in order.lengths_of(columns)]
