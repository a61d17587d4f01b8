"""A team's standing by fair share, as rows of its page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from portal.common.units import HOUR_S
from portal.quotas.fair_share import standing_of
from portal.teams.models import Team
from portal.teams.selectors import Rights
from scheduler.engine.order.fair_share import FairShare


@dataclass(frozen=True, slots=True)
class FairShareRow:
    """One row: parts in per cent and use in reference GPU-hours, as text; None is unknown."""

    name: str
    is_me: bool
    rank: int
    siblings: int
    share: str
    part: str | None
    hours: str
    ratio: str | None
    is_over: bool


@dataclass(frozen=True, slots=True)
class StandingCard:
    """The team among its siblings, then its people; ``counts``: the order in force weighs what was used."""

    team: FairShareRow
    people: list[FairShareRow]
    counts: bool
    order: str
    half_life_s: int
    as_of: datetime | None


def standing_card(team: Team, rights: Rights, *, now: datetime) -> StandingCard:
    """Return the standing of a visible team, and of those people whose standing may be seen."""
    found = standing_of(team, rights, now=now)
    return StandingCard(
        team=_place(team.name, found.team, is_me=False),
        people=[_place(str(user), at, is_me=user.pk == rights.user.pk) for user, at in found.people],
        counts=found.counts,
        order=found.order,
        half_life_s=found.half_life_s,
        as_of=found.as_of,
    )


def _place(name: str, at: FairShare, *, is_me: bool) -> FairShareRow:
    return FairShareRow(
        name=name,
        is_me=is_me,
        rank=at.rank,
        siblings=at.siblings,
        share=f"{at.share * 100:.3g}",
        part=None if at.part is None else f"{at.part * 100:.3g}",
        hours=f"{at.used_milli_s / 1000 / HOUR_S:.1f}",
        ratio=None if at.ratio is None else f"{at.ratio:.2f}",
        is_over=at.ratio is not None and at.ratio > 1,
    )
