"""Where else one is told: mailboxes, chats and webhooks over HTTP."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.api.describe import PAGING, call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, ClockField, Empty, Flag, Text
from portal.api.idempotency import once
from portal.api.pagination import PARAMETERS, Pages
from portal.api.representations import Row
from portal.api.responses import ContactPointAnswer, DeliveryAnswer, NewContactPointAnswer
from portal.api.wire import instant
from portal.common.clock import db_now
from portal.notifications import contact_points
from portal.notifications.contact_points import LONGEST_ADDRESS, LONGEST_NAME
from portal.notifications.models import ContactKind, ContactPoint, Delivery, Topic

TAG = "people"


class ContactBody(Body):
    """A new contact point."""

    kind = serializers.ChoiceField(ContactKind.choices)
    address = Text(most=LONGEST_ADDRESS, help_text="A mailbox, or a whole https:// address.")
    name = Text(most=LONGEST_NAME, default="", allow_blank=True, help_text="The kind where it is empty.")
    secret = Text(
        most=200,
        default="",
        allow_blank=True,
        help_text="Of Feishu and DingTalk robots that check signatures.",
    )


class ContactChange(Body):
    """How one wants to be told there; what is left out stays."""

    name = Text(most=LONGEST_NAME, required=False)
    muted = serializers.ListField(
        child=serializers.ChoiceField(Topic.choices), required=False, max_length=len(Topic.values),
        help_text="Topics that are not told there.",
    )  # fmt: skip
    digest_at = ClockField(help_text="Once a day, all together, at this time (HH:MM); null: when it happens.")
    quiet_from = ClockField(help_text="Nothing is sent from this time of the day (HH:MM) …")
    quiet_until = ClockField(help_text="… until this one, when all of it is.")
    is_on = Flag(required=False)


class ContactPoints(Endpoint):
    """One's own contact points."""

    read_scope = Scope.ADMIN
    parameters = PARAMETERS
    shown_once = ("secret",)

    @call("List contact points", answer=ContactPointAnswer, is_list=True, parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """List where one is told beside the pages."""
        pages = Pages()
        rows = pages.page(ContactPoint.objects.filter(user=self.person), request)
        return Response(pages.answer([contact_row(row) for row in rows]))

    @call(
        "Add a contact point", body=ContactBody, answer=NewContactPointAnswer, status=201, refusals=(409, 422),
        tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Add a mailbox, a chat or a webhook.

        A mailbox waits for the link that is sent there. The secret of a webhook is in this answer and nowhere else,
        also not in a repeated one.
        """
        made = contact_points.add_contact_point(
            user=self.person, origin=request.build_absolute_uri("/"), now=db_now(), **self.take(ContactBody)
        )
        body = {**contact_row(made.row), "secret": made.secret or None}
        return Response(body, status=201, headers={"Location": f"/api/v1/contact-points/{made.row.pk}/"})


class OneContactPoint(Endpoint):
    """One of one's own contact points."""

    read_scope = Scope.ADMIN

    @call("Read a contact point", answer=ContactPointAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, key: int) -> Response:
        """Return one of one's own contact points."""
        return Response(contact_row(contact_points.own(self.person, key)))

    @call(
        "Change a contact point", body=ContactChange, answer=ContactPointAnswer, refusals=(404, 422), tag=TAG
    )
    def put(self, request: Request, key: int) -> Response:
        """Choose what is told there and when, or switch it on or off."""
        row = contact_points.change_contact_point(
            user=self.person, contact_id=key, now=db_now(), **self.take(ContactChange)
        )
        return Response(contact_row(row))

    @call("Remove a contact point", status=204, refusals=(404,), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """Forget one of one's own contact points, with what waits to be sent there."""
        contact_points.remove_contact_point(user=self.person, contact_id=key, now=db_now())
        return Response(status=204)


class Deliveries(Endpoint):
    """What was sent to one of one's own contact points."""

    read_scope = Scope.ADMIN
    parameters = PARAMETERS

    @call("List deliveries", answer=DeliveryAnswer, is_list=True, parameters=PAGING, refusals=(404,), tag=TAG)
    def get(self, request: Request, key: int) -> Response:
        """List the messages of the last month to a contact point, newest first, with how they went."""
        contact = contact_points.own(self.person, key)
        pages = Pages()
        rows = pages.page(Delivery.objects.filter(contact=contact).select_related("notification"), request)
        return Response(pages.answer([delivery_row(row) for row in rows]))


class TryContactPoint(Endpoint):
    """A test message."""

    @call(
        "Test a contact point",
        body=Empty,
        answer=DeliveryAnswer,
        status=202,
        refusals=(404, 422, 429),
        tag=TAG,
    )
    @once
    def post(self, request: Request, key: int) -> Response:
        """Send a test message, or the link of a mailbox that waits to be confirmed once more."""
        self.take(Empty)
        row = contact_points.test_contact_point(user=self.person, contact_id=key, now=db_now())
        return Response(delivery_row(row), status=202)


def contact_row(row: ContactPoint) -> Row:
    """Return a contact point without its whole address and its secret."""
    return {
        "id": row.pk,
        "kind": row.kind,
        "name": row.name,
        "address": row.shown,
        "muted": list(row.muted),
        "digest_at": _clock(row.digest_at),
        "quiet_from": _clock(row.quiet_from),
        "quiet_until": _clock(row.quiet_until),
        "is_on": row.is_on,
        "confirmed_at": instant(row.confirmed_at),
        "created_at": instant(row.created_at),
    }


def delivery_row(row: Delivery) -> Row:
    """Return a delivery; its notification must be at hand."""
    return {
        "id": row.pk,
        "purpose": row.purpose,
        "kind": row.notification.kind if row.notification else None,
        "state": row.state,
        "attempts": row.attempts,
        "told_at": instant(row.told_at),
        "due_at": instant(row.due_at),
        "ended_at": instant(row.ended_at),
        "error": row.error,
    }


def _clock(minute: int | None) -> str | None:
    return None if minute is None else f"{minute // 60:02}:{minute % 60:02}"
