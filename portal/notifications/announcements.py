"""Announcements: what operators say on every page, to everybody or to a team, for a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Forbidden, Invalid, NotFound
from portal.common.live import EVENTS, publish_on_commit
from portal.common.sql import fetch
from portal.notifications.models import Announcement, AnnouncementLevel, Dismissal
from portal.teams.models import Membership, Team
from portal.teams.selectors import Rights

CHANGED: Final = "announcement.changed"
MOST_TEXT: Final = 300
# More at once would leave no room for the page.
MOST_AT_ONCE: Final = 5
_ANY: Final = """
SELECT EXISTS (SELECT FROM notifications_announcement WHERE withdrawn_at IS NULL AND (ends_at IS NULL OR ends_at > %s))
"""


@dataclass(frozen=True, slots=True)
class ShownAnnouncements:
    """What a page shows now, and when that changes by itself (None: not for now)."""

    rows: list[Announcement]
    changes_at: datetime | None


@transaction.atomic
def announce_to_people(
    *,
    level: str,
    text_en: str,
    text_zh: str,
    team: Team | None,
    starts_at: datetime | None,
    ends_at: datetime | None,
    rights: Rights,
    now: datetime,
) -> Announcement:
    """Say something on every page and tell the tabs that are open. Operators.

    ``starts_at`` None is now. Raises Forbidden, and Invalid naming each field.
    """
    _require_operator(rights)
    begins, said, said_zh = starts_at or now, text_en.strip(), text_zh.strip()
    fields: dict[str, str] = {}
    for name, text in (("text_en", said), ("text_zh", said_zh)):
        if len(text) > MOST_TEXT or (text and not text.isprintable()):
            fields[name] = _("One line of at most %(most)d characters.") % {"most": MOST_TEXT}
    if not said:
        fields["text_en"] = _("Write what people should know.")
    if level not in AnnouncementLevel.values:
        fields["level"] = _("Choose one of the levels.")
    if ends_at is not None and ends_at <= max(begins, now):
        fields["ends_at"] = _("The end must lie in the future and after the beginning.")
    if fields:
        raise Invalid(fields=fields)
    made = Announcement.objects.create(
        level=level, text_en=said, text_zh=said_zh, team=team, starts_at=begins, ends_at=ends_at,
        made_by=rights.user, created_at=now,
    )  # fmt: skip
    record(
        rights.user, "announcement.made", made.uid, at=now, team_id=team.pk if team else None, level=level, text=said
    )  # fmt: skip
    publish_on_commit(EVENTS, [{"event": CHANGED}])
    return made


@transaction.atomic
def withdraw_announcement(*, uid: str, rights: Rights, now: datetime) -> Announcement:
    """Show an announcement no more. Operators; safe to repeat. Raises Forbidden and NotFound."""
    _require_operator(rights)
    found = Announcement.objects.select_for_update(of=("self",)).filter(uid=uid).first()
    if found is None:
        raise NotFound
    if found.withdrawn_at is None:
        found.withdrawn_at = now
        found.save(update_fields=["withdrawn_at"])
        record(rights.user, "announcement.withdrawn", uid, at=now, team_id=found.team_id)
        publish_on_commit(EVENTS, [{"event": CHANGED}])
    return found


def dismiss_announcement(*, uid: str, rights: Rights, now: datetime) -> None:
    """Show an announcement to this person no more. Safe to repeat; raises NotFound for one they do not see."""
    shown = announcements_for(rights, now=now, with_dismissed=True).rows
    found = next((row for row in shown if row.uid == uid), None)
    if found is None:
        raise NotFound
    Dismissal.objects.bulk_create(
        [Dismissal(user=rights.user, announcement=found, dismissed_at=now)], ignore_conflicts=True
    )


def announcements_for(
    rights: Rights | None, *, now: datetime, with_dismissed: bool = False
) -> ShownAnnouncements:
    """Return what a person's pages show, ``rights`` None: what somebody who has not signed in sees.

    One small query, as every page asks; others only while there is something to say.
    """
    if fetch(_ANY, [now]) == [(False,)]:
        return ShownAnnouncements([], None)
    rows = announcements_to_come(now=now)
    if rights is None:
        rows = rows.filter(team=None)
    elif not with_dismissed:
        rows = rows.exclude(Exists(Dismissal.objects.filter(announcement=OuterRef("pk"), user=rights.user)))
    found = list(rows)
    if rights is not None and any(row.team_id for row in found):
        mine = _teams_of(rights.user)
        found = [row for row in found if row.team_id is None or row.team_id in mine]
    begun = [row for row in found if row.starts_at <= now]
    order = (AnnouncementLevel.CRITICAL, AnnouncementLevel.WARNING, AnnouncementLevel.INFO)
    begun.sort(key=lambda row: order.index(AnnouncementLevel(row.level)))
    instants = [row.ends_at if row.starts_at <= now else row.starts_at for row in found]
    return ShownAnnouncements(begun[:MOST_AT_ONCE], min((at for at in instants if at), default=None))


def announcements_to_come(*, now: datetime) -> QuerySet[Announcement]:
    """Return what is shown or will be, the latest first, with team and author at hand."""
    rows = Announcement.objects.filter(Q(ends_at=None) | Q(ends_at__gt=now), withdrawn_at=None)
    return rows.select_related("team", "made_by")


def past_announcements(*, now: datetime) -> QuerySet[Announcement]:
    """Return what is shown no more, the latest first, with team and author at hand."""
    return Announcement.objects.filter(Q(ends_at__lte=now) | Q(withdrawn_at__isnull=False)).select_related(
        "team", "made_by"
    )


def _teams_of(user: User) -> set[int]:
    """Return the teams in which somebody has a role, and those above them."""
    held = Membership.objects.filter(user=user).values("team")
    lineages = Team.objects.filter(pk__in=held).values_list("lineage", flat=True)
    return {team for lineage in lineages for team in lineage}


def _require_operator(rights: Rights) -> None:
    if not rights.is_operator:
        raise Forbidden(_("Only operators announce something."))
