"""Priority of a team on its page: what is in force, to come and over, and the form that gives it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy, pgettext_lazy

from portal.quotas.grants import (
    IN_FORCE,
    LEAST_STEPS,
    MOST_REASON,
    MOST_STEPS,
    OVER,
    REVOKED,
    TO_COME,
    grants_of,
    state_of,
)
from portal.quotas.models import PriorityGrant
from portal.quotas.selectors import may_set_quota
from portal.teams.models import Team
from portal.teams.selectors import Rights
from portal.web.fields import MomentField

SHOWN = 20
# Label, tone and icon of each state.
STATES: dict[str, tuple[Any, str, str]] = {
    TO_COME: (gettext_lazy("To come"), "info", "calendar"),
    IN_FORCE: (pgettext_lazy("in force", "Active"), "good", "circle-check"),
    OVER: (gettext_lazy("Over"), "quiet", "history"),
    REVOKED: (gettext_lazy("Revoked"), "quiet", "ban"),
}


class PriorityForm(forms.Form):
    """How far a team goes first, for how long, and why."""

    steps = forms.IntegerField(
        label=gettext_lazy("Steps"),
        min_value=LEAST_STEPS,
        max_value=MOST_STEPS,
        initial=10,
        help_text=gettext_lazy("High priority of a request is 10 steps above normal."),
        widget=forms.NumberInput({"class": "form-control", "inputmode": "numeric"}),
    )
    starts_at = MomentField(label=gettext_lazy("From"))
    ends_at = MomentField(label=gettext_lazy("Until"))
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=MOST_REASON,
        help_text=gettext_lazy("Others wait longer for it; they may ask."),
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )

    @classmethod
    def fresh(cls, now: datetime) -> PriorityForm:
        """Return the form for a week from the next hour on."""
        start = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        return cls(initial={"steps": 10, "starts_at": start, "ends_at": start + timedelta(days=7)})


@dataclass(frozen=True, slots=True)
class GrantRow:
    """A priority grant as a row; ``through`` names the team above that it was given to."""

    key: int
    steps: int
    starts_at: datetime
    ends_at: datetime
    reason: str
    maker: str
    through: str
    label: Any
    tone: str
    icon: str
    can_revoke: bool


def grant_rows(team: Team, rights: Rights, *, now: datetime) -> list[GrantRow]:
    """Return the grants that reach a team, its own and from above, the latest start first."""
    may = may_set_quota(rights, team)
    return [_row(row, team, may, now) for row in grants_of(team)[:SHOWN]]


def _row(row: PriorityGrant, team: Team, may: bool, now: datetime) -> GrantRow:
    state = state_of(row, now=now)
    label, tone, icon = STATES[state]
    return GrantRow(
        key=row.pk,
        steps=row.steps,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        reason=row.reason,
        maker=str(row.made_by) if row.made_by else "Berth",
        through="" if row.team_id == team.pk else row.team.name,
        label=label,
        tone=tone,
        icon=icon,
        can_revoke=may and row.team_id == team.pk and state in (TO_COME, IN_FORCE),
    )
