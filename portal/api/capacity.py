"""Where the capacity of a month went, over HTTP."""

from __future__ import annotations

from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.money import month_of
from portal.api.representations import Row
from portal.api.responses import Money, ResponseShape
from portal.api.wire import instant, money
from portal.billing.capacity_counts import counted_capacity
from portal.billing.conservation import (
    CapacityAccount,
    CapacityKind,
    lease_times,
    together,
)
from portal.billing.selectors import currency
from portal.common.clock import db_now
from portal.common.errors import NotFound
from portal.fleet.models import Device
from portal.web.capacity import require_finance_or_operator
from portal.web.invoices.months import named

TAG = "money"


class CapacityKinds(ResponseShape):
    """Thousandths of a device times seconds by what they went to; `difference` is 0 where the books are right."""

    billed = s.IntegerField()
    free = s.IntegerField()
    reserved = s.IntegerField()
    preparing = s.IntegerField()
    cleaning = s.IntegerField()
    stranded = s.IntegerField(help_text="Left of a board cut into slices in which no slice had a place.")
    idle = s.IntegerField()
    maintenance = s.IntegerField()
    fault = s.IntegerField()
    unknown = s.IntegerField()
    above = s.IntegerField(help_text="Held beyond a whole device, as shares are rounded up: taken off.")
    capacity = s.IntegerField()
    difference = s.IntegerField()
    stranded_cost = Money(
        help_text="Stranded time at the price of the whole device: nobody is billed for it."
    )


class DeviceCapacity(CapacityKinds):
    """One device of the month."""

    node = s.CharField()
    index = s.IntegerField()
    uuid = s.CharField()
    device_model = s.CharField()


class CapacityAnswer(ResponseShape):
    """Where a month's capacity went: all of the cluster together, and each device."""

    month = s.CharField()
    counted_at = s.DateTimeField(
        allow_null=True, help_text="As of when; null for a large month that is still to be counted."
    )
    total = CapacityKinds(allow_null=True)
    devices = DeviceCapacity(many=True)


class LeaseTimeAnswer(ResponseShape):
    """What a lease took of a device in the month."""

    lease = s.CharField()
    team = s.CharField()
    kinds = s.DictField(child=s.IntegerField())


class MonthCapacity(Endpoint):
    """Where a month's capacity went."""

    @call("Read where a month's capacity went", answer=CapacityAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, month: str) -> Response:
        """Read each device's time of a month by what it went to; up to now in a running one. Finance, operators."""
        require_finance_or_operator(self.rights)
        period = named(month)
        counted = counted_capacity(period, now=db_now())
        if counted is None:
            return Response({"month": month_of(period), "counted_at": None, "total": None, "devices": []})
        found = counted.devices
        devices = [
            {
                "node": one.node,
                "index": one.index,
                "uuid": one.uuid,
                "device_model": one.model,
                **_kinds(one.account),
            }
            for one in found
        ]
        total = together(one.account for one in found)
        answer = {"month": month_of(period), "counted_at": instant(counted.at), "total": _kinds(total)}
        return Response({**answer, "devices": devices})


class DeviceLeases(Endpoint):
    """The leases behind a device's month."""

    @call("List a device's leases of a month", answer=LeaseTimeAnswer, is_list=True, refusals=(404,), tag=TAG)
    def get(self, request: Request, month: str, uuid: str) -> Response:
        """List the leases behind a device's month with what each took of it. Finance, operators."""
        require_finance_or_operator(self.rights)
        period, device = named(month), Device.objects.filter(uuid=uuid).first()
        if device is None:
            raise NotFound
        rows = lease_times(period, device.pk, now=db_now())
        results = [{"lease": row.uid, "team": row.team, "kinds": row.kinds} for row in rows]
        return Response({"next": None, "results": results})


def _kinds(account: CapacityAccount) -> Row:
    return {
        **{str(kind): account.kinds[kind] for kind in CapacityKind.values},
        "above": account.above,
        "capacity": account.capacity,
        "difference": account.difference,
        "stranded_cost": money(round(account.stranded_micro), currency()),
    }
