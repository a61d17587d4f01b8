"""Reports that are sent by themselves, over HTTP."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Flag, Text, Whole
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses_mailings import MailingAnswer, MailingDelivery
from portal.api.wire import instant
from portal.billing.mailings import (
    FORMATS,
    MailingWish,
    deliveries_of,
    mailing_of,
    mailings_of,
    remove_mailing,
    send_report,
    set_mailing,
)
from portal.billing.models import ReportMailing
from portal.billing.models_mailings import LAST_DAY
from portal.notifications.models import Delivery
from portal.teams.selectors import visible_team
from portal.web.invoices.months import named

TAG = "money"
SHOWN = 100


class MailingBody(Body):
    """What is sent to whom, when."""

    day = Whole(
        least=1, most=LAST_DAY, required=False, allow_null=True,
        help_text="Day of the month on which the month before is sent; null: after each close.",
    )  # fmt: skip
    formats = serializers.ListField(child=serializers.ChoiceField(tuple(FORMATS)), min_length=1, max_length=4)
    language = serializers.ChoiceField(settings.LANGUAGES, default="en", help_text="Of the files.")
    recipients = serializers.ListField(child=Text(most=150), min_length=1, max_length=50)
    is_on = Flag(default=True)


class NewMailingBody(MailingBody):
    """The same, with the team whose report it is."""

    team = Text(most=50)


class SendBody(Body):
    """Which month."""

    month = Text(most=7)


class Mailings(Endpoint):
    """Mailings of reports."""

    @call("List mailings", answer=MailingAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the mailings of teams whose admin or finance you are."""
        return Response({"next": None, "results": [mailing_row(row) for row in mailings_of(self.rights)]})

    @call(
        "Add a mailing",
        body=NewMailingBody,
        answer=MailingAnswer,
        status=201,
        refusals=(404, 409, 422),
        tag=TAG,
    )
    @once
    def post(self, request: Request) -> Response:
        """Have the report of a team, and of all below it, sent to people each month. Its admins and finance."""
        values = self.take(NewMailingBody)
        team = visible_team(self.rights, values.pop("team"))
        made = set_mailing(team=team, wish=_wish(values), rights=self.rights, now=timezone.now())
        return Response(
            mailing_row(made), status=201, headers={"Location": f"/api/v1/report-mailings/{made.pk}/"}
        )


class OneMailing(Endpoint):
    """One mailing."""

    @call("Change a mailing", body=MailingBody, answer=MailingAnswer, refusals=(404, 409, 422), tag=TAG)
    def put(self, request: Request, key: int) -> Response:
        """Say anew what is sent to whom, when."""
        found = mailing_of(self.rights, key)
        wish = _wish(self.take(MailingBody))
        return Response(
            mailing_row(
                set_mailing(team=found.team, wish=wish, rights=self.rights, now=timezone.now(), mailing=found)
            )
        )

    @call("Remove a mailing", status=204, refusals=(404,), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """Send nothing more by it."""
        remove_mailing(mailing=mailing_of(self.rights, key), rights=self.rights, now=timezone.now())
        return Response(status=204)


class SendMailing(Endpoint):
    """A month, sent now."""

    @call("Send a report", body=SendBody, answer=MailingAnswer, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, key: int) -> Response:
        """Send a month now, running, over or closed; again where it was sent before."""
        found, month = mailing_of(self.rights, key), self.take(SendBody)["month"]
        send_report(mailing=found, period=named(month), rights=self.rights, now=timezone.now())
        return Response(mailing_row(found))


class MailingDeliveries(Endpoint):
    """What a mailing sent."""

    @call("List what a mailing sent", answer=MailingDelivery, is_list=True, refusals=(404,), tag=TAG)
    def get(self, request: Request, key: int) -> Response:
        """List what went to contact points in the last 30 days, with tries and what went wrong, newest first."""
        rows = deliveries_of(mailing_of(self.rights, key), most=SHOWN)
        return Response({"next": None, "results": [_delivery_row(row) for row in rows]})


def _wish(values: dict[str, Any]) -> MailingWish:
    return MailingWish(**{"day": None, **values})


def mailing_row(mailing: ReportMailing) -> Row:
    """Return a mailing; its team must be at hand."""
    return {
        "id": mailing.pk,
        "team": mailing.team.slug,
        "day": mailing.day,
        "formats": list(mailing.formats),
        "language": mailing.language,
        "recipients": sorted(user.username for user in mailing.recipients.all()),
        "is_on": mailing.is_on,
    }


def _delivery_row(delivery: Delivery) -> Row:
    news = delivery.notification
    return {
        "month": news.facts.get("month", "") if news else "",
        "recipient": delivery.contact.user.username,
        "by": str(delivery.contact.kind),
        "state": str(delivery.state),
        "told_at": instant(delivery.told_at),
        "ended_at": instant(delivery.ended_at),
        "attempts": delivery.attempts,
        "error": delivery.error,
    }
