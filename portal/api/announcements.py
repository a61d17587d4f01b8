"""Announcements over HTTP: everybody reads and dismisses, operators announce and withdraw."""

from __future__ import annotations

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Instant, Text
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses import AnnouncementAnswer
from portal.api.wire import instant
from portal.notifications.announcements import (
    MOST_TEXT,
    announce_to_people,
    announcements_for,
    announcements_to_come,
    dismiss_announcement,
    withdraw_announcement,
)
from portal.notifications.models import Announcement, AnnouncementLevel
from portal.teams.selectors import visible_team

TAG = "people"


class AnnouncementBody(Body):
    """What to say on every page, to whom and for how long."""

    text_en = Text(most=MOST_TEXT)
    text_zh = Text(
        most=MOST_TEXT, required=False, default="", allow_blank=True, help_text="Empty: `text_en`."
    )
    level = serializers.ChoiceField(AnnouncementLevel.choices, default=AnnouncementLevel.INFO.value)
    team = Text(
        most=50,
        required=False,
        allow_null=True,
        default=None,
        help_text="Only for this team and those below; null: all.",
    )
    starts_at = Instant(required=False, allow_null=True, default=None, help_text="Null: now.")
    ends_at = Instant(required=False, allow_null=True, default=None, help_text="Null: until it is withdrawn.")


class Announcements(Endpoint):
    """What is announced."""

    @call("List announcements", answer=AnnouncementAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List what one's pages show now, louder ones first; for operators all that is on and to come."""
        now = timezone.now()
        if self.rights.is_operator:
            rows = list(announcements_to_come(now=now)[:1000])
        else:
            rows = announcements_for(self.rights, now=now).rows
        return Response({"next": None, "results": [announcement_row(row) for row in rows]})

    @call(
        "Announce something", body=AnnouncementBody, answer=AnnouncementAnswer, status=201,
        refusals=(404, 422), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Say something on every page; open pages show it at once. Operators."""
        self.require_operator()
        values = self.take(AnnouncementBody)
        team = visible_team(self.rights, values["team"]) if values["team"] else None
        made = announce_to_people(**{**values, "team": team}, rights=self.rights, now=timezone.now())
        at = f"/api/v1/announcements/{made.uid}/"
        return Response(announcement_row(made), status=201, headers={"Location": at})


class OneAnnouncement(Endpoint):
    """One announcement."""

    @call("Withdraw an announcement", status=204, refusals=(404,), tag=TAG)
    def delete(self, request: Request, uid: str) -> Response:
        """Show an announcement to nobody any more. Operators."""
        self.require_operator()
        withdraw_announcement(uid=uid, rights=self.rights, now=timezone.now())
        return Response(status=204)


class DismissAnnouncement(Endpoint):
    """Dismiss an announcement."""

    @call("Dismiss an announcement", body=Empty, status=204, refusals=(404,), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Show an announcement on one's own pages no more."""
        self.take(Empty)
        dismiss_announcement(uid=uid, rights=self.rights, now=timezone.now())
        return Response(status=204)


def announcement_row(row: Announcement) -> Row:
    """Return an announcement; its team and author must be at hand."""
    return {
        "id": row.uid,
        "level": row.level,
        "text_en": row.text_en,
        "text_zh": row.text_zh,
        "team": row.team.slug if row.team else None,
        "starts_at": instant(row.starts_at),
        "ends_at": instant(row.ends_at),
    }
