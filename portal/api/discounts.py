"""Discounts over HTTP."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, ClockField, Flag, Instant, Text, Whole
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses_money import DiscountAnswer
from portal.api.wire import instant
from portal.catalog.discounts import EVERY_DAY, DiscountHours, add_discount, end_discount, visible_discounts
from portal.catalog.models import Discount
from portal.common.clock import db_now
from portal.common.errors import Invalid
from portal.teams.selectors import visible_team

TAG = "money"


class DiscountBody(Body):
    """What leases pay less of the price, from an instant on."""

    name = Text(most=60)
    percent = Whole(least=1, most=100)
    team = Text(
        most=50, required=False, help_text="For this team and those below it; left out: for everybody."
    )
    only_preemptible = Flag(required=False, help_text="For preemptible leases only.")
    days = serializers.ListField(
        child=Whole(least=0, most=6), required=False, max_length=7,
        help_text="With `from_time`: 0 is Monday; left out: every day.",
    )  # fmt: skip
    from_time = ClockField(help_text="Each day from then, as `HH:MM`; left out: at all times.")
    to_time = ClockField(help_text="Until then, on the next day where it is earlier.")
    zone = Text(most=60, required=False, help_text="Time zone that the hours are meant in; left out: UTC.")
    starts_at = Instant(required=False, help_text="A minute ahead at least; left out: in a minute.")
    ends_at = Instant(required=False, help_text="Left out: until it is ended.")


class Discounts(Endpoint):
    """Discounts."""

    @call("List discounts", answer=DiscountAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List past, present and planned discounts that may be yours; finance sees all."""
        rows = visible_discounts(self.rights)
        return Response({"next": None, "results": [discount_row(row) for row in rows]})

    @call(
        "Add a discount", body=DiscountBody, answer=DiscountAnswer, status=201, refusals=(404, 409, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Let leases pay less of the price from an instant on. Finance."""
        self.require_finance()
        values = self.take(DiscountBody)
        made = add_discount(
            name=values["name"],
            off_milli=values["percent"] * 10,
            team=visible_team(self.rights, values["team"]) if values.get("team") else None,
            only_preemptible=values.get("only_preemptible", False),
            hours=_hours(values),
            starts_at=values.get("starts_at"),
            ends_at=values.get("ends_at"),
            actor=self.person,
            now=db_now(),
        )
        return Response(discount_row(made), status=201, headers={"Location": f"/api/v1/discounts/{made.pk}/"})


class OneDiscount(Endpoint):
    """One discount."""

    @call("End a discount", status=204, refusals=(404, 409), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """End a discount in a minute, or take back one that has not begun. Finance."""
        self.require_finance()
        end_discount(key=key, actor=self.person, now=db_now())
        return Response(status=204)


def _hours(values: dict[str, Any]) -> DiscountHours | None:
    given = [name for name in ("from_time", "to_time") if values.get(name) is not None]
    if len(given) == 1 or (not given and values.get("days")):
        raise Invalid(fields={"from_time": "Give both from_time and to_time, or none of the hours."})
    if not given:
        return None
    days = values.get("days") or EVERY_DAY
    return DiscountHours(tuple(days), values["from_time"], values["to_time"], values.get("zone") or "UTC")


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def discount_row(discount: Discount) -> Row:
    """Return a discount; its team must be at hand."""
    has_hours = bool(discount.days)
    return {
        "id": discount.pk,
        "name": discount.name,
        "percent": discount.off_milli / 10,
        "team": discount.team.slug if discount.team else None,
        "only_preemptible": discount.only_preemptible,
        "days": list(discount.days),
        "from_time": _clock(discount.from_minute) if has_hours else None,
        "to_time": _clock(discount.to_minute) if has_hours else None,
        "zone": discount.zone if has_hours else None,
        "valid_from": instant(discount.valid.lower),
        "valid_until": instant(discount.valid.upper),
    }
