"""Energy and carbon over HTTP: what leases and months used, the factors that make carbon of it."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Flag, Instant, PriceField, Text
from portal.api.idempotency import once
from portal.api.money import month_of
from portal.api.parsers import FileParser
from portal.api.representations import Row
from portal.api.responses_energy import (
    EnergyFactorAnswer,
    ImportedFactors,
    LeaseEnergyAnswer,
    MonthEnergyAnswer,
    RefusedCounterAnswer,
    energy_row,
)
from portal.api.wire import MICRO, instant, money
from portal.billing.electricity import electricity_by_team, electricity_of_lease
from portal.billing.energy import (
    KWH_MJ,
    EnergyBy,
    energy_of_lease,
    energy_of_month,
    refused_counters,
)
from portal.billing.energy_factors import (
    FactorSpec,
    add_factor,
    end_factor,
    factors,
    import_factors,
)
from portal.billing.models import EnergyFactor, EnergyFactorKind
from portal.billing.selectors import currency
from portal.common.csv_rows import MOST_TEXT
from portal.common.errors import Forbidden, Invalid
from portal.leases.selectors import visible_lease
from portal.web.invoices.months import named
from portal.web.reports.page import teams_of_report

TAG = "money"
LOOK_BACK = timedelta(days=14)  # minutes are kept at least as long


@extend_schema_field({"type": "string", "pattern": r"^\d{1,5}(\.\d{1,3})?$", "examples": ["380.5"]})
class FactorValue(PriceField):
    """A factor as a decimal string, in thousandths at the finest."""

    default_error_messages = {
        "invalid": gettext_lazy("Write the value as a text like “380.5”, with at most three decimals.")
    }
    pattern = re.compile(r"[0-9]{1,5}(\.[0-9]{1,3})?")


class EnergyFactorBody(Body):
    """A factor of a site from an instant on; a price is that of a MWh in the currency of the books."""

    kind = s.ChoiceField(EnergyFactorKind.choices)
    site = Text(most=60, required=False, help_text="Left out: of every site without its own.")
    value = FactorValue()
    source = Text(most=200, help_text="Where the figure is from.")  # type: ignore[assignment]
    starts_at = Instant(
        required=False, help_text="Left out: now. It may be past, after the last closed month."
    )
    ends_at = Instant(required=False, help_text="Left out: until another follows.")


class FactorFileBody(Body):
    """A CSV file of factors: kind,site,from,until,value,source."""

    csv = s.CharField(max_length=MOST_TEXT, trim_whitespace=False)
    is_trial = Flag(required=False, help_text="Only check it.")


class LeaseEnergyView(Endpoint):
    """What a lease used."""

    @call("Read the energy of a lease", answer=LeaseEnergyAnswer, refusals=(404,), tag="leases")
    def get(self, request: Request, uid: str) -> Response:
        """Read what a lease used and emitted so far, up to some minutes ago, and what of it is charged."""
        lease = visible_lease(self.rights, uid)
        rows = electricity_of_lease(lease)
        charged = rows and _electricity_row(
            sum(row.energy_mj for row in rows), int(sum(row.exact for row in rows)), currency()
        )
        return Response(
            energy_row(energy_of_lease(lease, now=timezone.now())) | {"electricity": charged or None}
        )


class MonthEnergy(Endpoint):
    """The energy of a month."""

    parameters = frozenset({"by", "team", "person"})

    @call(
        "Read the energy of a month", answer=MonthEnergyAnswer, refusals=(404, 422), tag=TAG,
        parameters=[
            query("by", "team, person, device_model or day; default team."),
            query("team", "Slug of a team: it and all teams below it."),
            query("person", "User name: what this person used."),
        ],
    )  # fmt: skip
    def get(self, request: Request, month: str) -> Response:
        """Read what a month's leases used and emitted, of the teams in sight, running ones too."""
        by = request.query_params.get("by", EnergyBy.TEAM)
        if by not in EnergyBy.values:
            raise Invalid(
                fields={"by": _("Choose one of: %(names)s.") % {"names": ", ".join(EnergyBy.values)}}
            )
        now = timezone.now()
        period, teams = named(month), teams_of_report(self.rights, request.query_params.get("team", ""))
        person = request.query_params.get("person", "")[:150]
        rows, whole = energy_of_month(period, teams, by=EnergyBy(by), person=person, now=now)
        listed = [{"key": row.key, "name": row.name, **energy_row(row.figures)} for row in rows]
        charged, unit = electricity_by_team(period, now=now), currency()
        electricity = [
            {"team": team.slug, "name": team.name, **_electricity_row(*charged.by_team[team.pk], unit)}
            for team in teams
            if team.pk in charged.by_team
        ]
        return Response(
            {
                "month": month_of(period),
                "by": by,
                "rows": listed,
                "total": energy_row(whole),
                "electricity": electricity,
                "electricity_counted_at": instant(charged.counted_at),
            }
        )


class EnergyFactors(Endpoint):
    """Factors of the grid and PUE."""

    @call("List factors of carbon and PUE", answer=EnergyFactorAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List past, present and planned factors of all sites."""
        return Response({"next": None, "results": [factor_row(row) for row in factors()]})

    @call(
        "Set a factor of carbon or PUE", body=EnergyFactorBody, answer=EnergyFactorAnswer, status=201,
        refusals=(403, 409, 422), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Set a factor of a site from an instant on; an open one in force ends there. Finance and operators."""
        _require_setter(self)
        values = self.take(EnergyFactorBody)
        made = add_factor(
            kind=values["kind"],
            site=values.get("site", ""),
            value=Decimal(values["value"]) / MICRO,
            source=values["source"],
            starts_at=values.get("starts_at"),
            ends_at=values.get("ends_at"),
            actor=self.person,
        )
        return Response(
            factor_row(made), status=201, headers={"Location": f"/api/v1/energy-factors/{made.pk}/"}
        )


class OneEnergyFactor(Endpoint):
    """One factor."""

    @call("End a factor of carbon or PUE", status=204, refusals=(403, 404, 409), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """End a factor now, or take back one that has not begun. Finance and operators."""
        _require_setter(self)
        end_factor(key=key, actor=self.person)
        return Response(status=204)


class EnergyFactorFile(Endpoint):
    """Many factors at once."""

    parser_classes = (FileParser,)

    @call(
        "Import factors of carbon and PUE", body=FactorFileBody, answer=ImportedFactors, status=201,
        refusals=(403, 409, 422), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Add all factors of a CSV file or none; a trial only checks it. Finance and operators."""
        _require_setter(self)
        values = self.take(FactorFileBody)
        is_trial = values.get("is_trial", False)
        added: list[FactorSpec] = import_factors(values["csv"], actor=self.person, is_trial=is_trial)
        return Response({"rows": len(added), "is_trial": is_trial}, status=201)


class RefusedCounters(Endpoint):
    """Devices whose figures of energy could not be true."""

    @call(
        "List refused energy counters",
        answer=RefusedCounterAnswer,
        is_list=True,
        refusals=(403,),
        tag="fleet",
    )
    def get(self, request: Request) -> Response:
        """List devices whose counter ran backwards or beyond their model's limit in 14 days. Operators."""
        self.require_operator()
        found = refused_counters(since=timezone.now() - LOOK_BACK)
        rows = [
            {"node": one.node, "device": one.index, "seconds": one.seconds, "last_at": instant(one.at)}
            for one in found
        ]
        return Response({"next": None, "results": rows})


def _electricity_row(mj: int, micro: int, unit: str) -> Row:
    return {"kwh": round(mj / KWH_MJ, 6), "amount": money(micro, unit)}


def factor_row(factor: EnergyFactor) -> Row:
    """Return a factor as answers have it."""
    return {
        "id": factor.pk,
        "kind": factor.kind,
        "site": factor.site,
        "value": f"{Decimal(factor.value_milli) / 1000:.3f}",
        "source": factor.source,
        "valid_from": instant(factor.valid.lower),
        "valid_until": instant(factor.valid.upper),
    }


def _require_setter(endpoint: Endpoint) -> None:
    if not (endpoint.rights.is_finance or endpoint.rights.is_operator):
        raise Forbidden(_("Only finance and operators set factors of energy."))
