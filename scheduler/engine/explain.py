"""Why a claim gets nothing: ordered reasons, the main one first, with the figures of the sentence."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.engine.impossible import above_quota, beyond_fleet, malformed
from scheduler.engine.model import Claim, Reason
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.place.fill import spots_cost
from scheduler.engine.quota import CohortShort
from scheduler.engine.shape import Shape
from scheduler.engine.shortage import Shortage


class Explainer:
    """Reasons against one room that does not change meanwhile; equal shapes share the look-ups.

    ``fitted`` says whether a shape had room when the turn began and ``granted`` how many claims were served
    since: what fitted then and does not now went to claims ahead.
    """

    def __init__(
        self, room: Occupancy, fitted: Callable[[Shape], bool] | None = None, granted: int = 0
    ) -> None:
        self._room = room
        self._asks_fitted = fitted
        self._granted = granted
        self._shortage = Shortage(room)
        self._beyond: dict[Shape, Reason | None] = {}
        self._short: dict[Shape, tuple[Reason, ...]] = {}
        self._fitted: dict[Shape, bool] = {}

    def explain(self, claim: Claim, shape: Shape, position: int = 1) -> tuple[Reason, ...]:
        """Why the room has nothing for the claim; never empty for a claim that was refused."""
        never = self.never(claim, shape)
        if never is not None:
            return (never,)
        least = self._room.least_cost(shape)
        can_pay = self._room.budget.allows(claim.team_id, least)
        quota = () if can_pay else (self._short_of_quota(claim, least),)
        short = self._short_of_room(shape)
        if not short and can_pay:
            # The lightest boards are taken: what is free costs more than the headroom.
            spots = self._room.cheapest(shape) or []
            return (self._short_of_quota(claim, spots_cost(spots, shape)),)
        if not short:
            return quota
        if quota or not self._fitted_before(shape):
            return (*quota, *short)
        behind = Reason("behind", {"position": position, "granted": self._granted})
        return (behind, *short)

    def never(self, claim: Claim, shape: Shape) -> Reason | None:
        """Why waiting cannot help the claim; None where it can."""
        if not shape.wanted:
            return malformed(claim)
        if shape not in self._beyond:
            self._beyond[shape] = beyond_fleet(self._room, shape)
        return self._beyond[shape] or above_quota(self._room, claim.team_id, shape)

    def _short_of_room(self, shape: Shape) -> tuple[Reason, ...]:
        if shape not in self._short:
            fits = self._room.spots(shape) is not None
            self._short[shape] = () if fits else self._shortage.reasons(shape)
        return self._short[shape]

    def _fitted_before(self, shape: Shape) -> bool:
        if self._asks_fitted is None or not self._granted:
            return False
        if shape not in self._fitted:
            self._fitted[shape] = self._asks_fitted(shape)
        return self._fitted[shape]

    def _short_of_quota(self, claim: Claim, wanted: int) -> Reason:
        account = self._room.budget.tightest(claim.team_id)
        short = self._room.budget.short_in_cohort(claim.team_id, wanted)
        fits = account is None or account.ceiling is None or account.used + wanted <= account.ceiling
        if short is not None and fits:
            return _cohort_exhausted(short, wanted)
        if account is None or account.ceiling is None:
            return Reason("quota_ceiling", {"wanted_milli": wanted})
        return Reason(
            "quota_ceiling",
            {
                "team": account.team_id,
                "name": account.name,
                "ceiling_milli": account.ceiling,
                "used_milli": account.used,
                "wanted_milli": wanted,
                "short_milli": account.used + wanted - account.ceiling,
            },
        )


def _cohort_exhausted(short: CohortShort, wanted: int) -> Reason:
    account = short.account
    return Reason(
        "cohort_exhausted",
        {
            "team": account.team_id,
            "name": account.name,
            "guaranteed_milli": account.guaranteed,
            "used_milli": account.used,
            "borrowed_milli": short.borrowed,
            "lendable_milli": short.lendable,
            "wanted_milli": wanted,
            "short_milli": short.short,
        },
    )
