"""Charges as FOCUS 1.2 has them (FinOps Open Cost and Usage Specification): a row per usage record and note, as CSV.

PostgreSQL writes the file, so that a million rows cost seconds and no memory here. The billed cost of a line's records
adds up to the line, to the micro-unit: each has the difference of what the line had come to before and after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import IO

from django.db import connection, transaction
from psycopg import sql

from portal.billing.charges import Charge
from portal.billing.energy import KWH_MJ, RECORD_ENERGY
from portal.billing.models import BillingPeriod
from portal.teams.models import Team

PATIENCE = "10min"  # of a statement, on months of many millions of records
SORTED_IN = "64MB"  # of the database's memory, while it writes a file

# Column and what is in it. Numbers carry their decimals, as FOCUS wants decimals and readers guess types by them;
# text that a spreadsheet would take for a formula begins with an apostrophe.
COLUMNS = {
    "BilledCost": "money(billed)",
    "BillingAccountId": "%(account)s",
    "BillingAccountName": "text(%(issuer)s)",
    "BillingAccountType": "'Organisation'",
    "BillingCurrency": "currency",
    "BillingPeriodEnd": "%(ends)s",
    "BillingPeriodStart": "%(starts)s",
    "ChargeCategory": "'Usage'",
    "ChargeClass": "CASE WHEN late_for_id IS NOT NULL THEN 'Correction' END",
    "ChargeDescription": "text(coalesce(note, flavor || ', ' || lease))",
    "ChargeFrequency": "CASE WHEN note IS NULL THEN 'Usage-Based' ELSE 'One-Time' END",
    "ChargePeriodEnd": "time(upper(span))",
    "ChargePeriodStart": "time(lower(span))",
    "ConsumedQuantity": "number(seconds / 3600.0)",
    "ConsumedUnit": "CASE WHEN note IS NULL THEN 'Hours' END",
    "ContractedCost": "number(coalesce(quantity / 3600000.0 * micro_per_hour, billed) / 1000000.0)",
    "ContractedUnitPrice": "money(micro_per_hour)",
    "EffectiveCost": "money(billed)",
    "InvoiceId": "number_of_invoice",
    "InvoiceIssuerName": "text(%(issuer)s)",
    "ListCost": "number(coalesce(quantity / 3600000.0 * list_per_hour, billed) / 1000000.0)",
    "ListUnitPrice": "money(list_per_hour)",
    "PricingCategory": "CASE WHEN micro_per_hour = list_per_hour THEN 'Standard' ELSE 'Other' END",
    "PricingQuantity": "number(quantity / 3600000.0)",
    "PricingUnit": "CASE WHEN note IS NULL THEN 'GPU-Hours' END",
    "ProviderName": "text(%(issuer)s)",
    "PublisherName": "text(%(issuer)s)",
    "ResourceId": "lease",
    "ResourceName": "lease",
    "ResourceType": "CASE WHEN lease IS NOT NULL THEN 'GPU lease' END",
    "ServiceCategory": "'Compute'",
    "ServiceName": "'GPU'",
    "ServiceSubcategory": "'Other (Compute)'",
    "SkuId": "sku",
    "SkuPriceId": "'rate-' || rate_id",
    "SubAccountId": "account",
    "SubAccountName": "text(team)",
    "SubAccountType": "'Team'",
    "Tags": (
        "tags || jsonb_strip_nulls(jsonb_build_object('cost_centre', cost_centre, 'person', person,"
        " 'device_model', device_model, 'project', nullif(project, '')))"
    ),
    # Columns of one's own: energy is told beside the charge and is no part of it. Empty is unknown.
    "x_CarbonGrams": "number(carbon_mg / 1000)",
    "x_EnergyBasis": "energy_basis",
    "x_EnergyKwh": f"number(energy_mj / {KWH_MJ}.0)",
}
# Electricity has a price: what a kWh of the row costs on average.
_AT_MEAN = f"number(coalesce(charged_mj * kwh_price::numeric / {KWH_MJ}, billed) / 1000000.0)"
# What differs where devices outside Berth were used: their source provides them. Electricity of leases is our own.
OF_EXTERNAL = {
    "ChargeDescription": "text(note)",
    "ChargeFrequency": "'Usage-Based'",
    "ConsumedQuantity": f"number(coalesce(charged_mj / {KWH_MJ}.0, seconds / 3600.0))",
    "ConsumedUnit": "CASE WHEN charged_mj IS NULL THEN 'Hours' ELSE 'kWh' END",
    "ContractedCost": _AT_MEAN,
    "ContractedUnitPrice": "money(kwh_price)",
    "ListCost": _AT_MEAN,
    "ListUnitPrice": "money(kwh_price)",
    "PricingQuantity": f"number(CASE WHEN kwh_price IS NOT NULL THEN charged_mj / {KWH_MJ}.0 END)",
    "PricingUnit": "CASE WHEN kwh_price IS NOT NULL THEN 'kWh' END",
    "ProviderName": "text(source)",
    "PublisherName": "text(source)",
    "ResourceId": "text(lease)",
    "ResourceName": "text(lease)",
    "ResourceType": "CASE WHEN charged_mj IS NULL THEN 'External usage' ELSE 'Electricity' END",
}
_WRITTEN = "%Y-%m-%dT%H:%M:%SZ"
_WORDS = (
    ("money(", "round({} / 1000000.0, 6)"),
    ("number(", "round({}, 12)"),
    ("time(", """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""),
    ("text(", r"regexp_replace(regexp_replace({}, '[\r\n]', ' ', 'g'), '^(?=\s*[=+\-@\t|])', '''')"),
)
# Rows are put into their order once, before they are written out as text: that of the running sum.
_USAGE = """
WITH energy AS ({energy}),
charge AS (
  SELECT * FROM unnest({totals}::bigint[], {amounts}::bigint[], {numbers}::text[], {teams}::text[], {centres}::text[])
  AS c(total_id, amount, number_of_invoice, team, cost_centre)),
usage AS (
  SELECT c.total_id, c.amount, c.number_of_invoice, c.team, coalesce(nullif(b.cost_centre, ''), c.cost_centre)
    AS cost_centre, b.project, coalesce(b.tags, '{{}}') AS tags,
    t.share_milli_seconds AS whole, t.late_for_id, u.span, u.seconds, u.share_milli_seconds AS quantity,
    u.micro_per_hour, u.currency, u.rate_id, catalog_price_of(r, f) AS list_per_hour, l.uid AS lease,
    p.username AS person, f.slug AS sku,
    f.name || CASE WHEN u.minimum_micro IS NULL THEN '' ELSE ', minimum charge' END AS flavor,
    m.name AS device_model, o.slug AS account, u.id AS record_id,
    sum(u.share_milli_seconds) OVER (PARTITION BY t.id ORDER BY u.id) AS upto, e.mg AS carbon_mg,
    e.measured_mj + e.estimated_mj AS energy_mj,
    CASE WHEN e.estimated_s > 0 THEN 'estimated' WHEN e.measured_s > 0 THEN 'measured' ELSE 'unknown' END
      AS energy_basis
  FROM charge c JOIN billing_usagetotal t ON t.id = c.total_id
  JOIN billing_usagerecord u ON u.period_id = t.period_id AND u.team_id = t.team_id
    AND u.micro_per_hour = t.micro_per_hour AND u.currency = t.currency
    AND u.late_for_id IS NOT DISTINCT FROM t.late_for_id
  JOIN leases_lease l ON l.id = u.lease_id AND l.user_id = t.user_id AND l.flavor_id = t.flavor_id
  JOIN accounts_user p ON p.id = t.user_id JOIN catalog_flavor f ON f.id = t.flavor_id
  JOIN fleet_devicemodel m ON m.id = f.device_model_id JOIN teams_team o ON o.id = t.team_id
  JOIN catalog_rate r ON r.id = u.rate_id LEFT JOIN billing_usagelabel b ON b.id = u.label_id
  LEFT JOIN energy e ON e.record_id = u.id)
SELECT {columns} FROM (
  SELECT total_id, record_id, number_of_invoice, team, cost_centre, late_for_id, span, seconds, quantity,
    micro_per_hour, currency, rate_id, list_per_hour, lease, person, sku, flavor, device_model, account, project, tags,
    carbon_mg, energy_mj, energy_basis, NULL AS note,
    div(amount::numeric * upto, whole) - div(amount::numeric * (upto - quantity), whole) AS billed
  FROM usage) rated
ORDER BY total_id, record_id
"""
_NOTES = """
SELECT {columns} FROM (
  SELECT n.id AS note_id, c.number_of_invoice, c.team, c.cost_centre, b.period_id AS late_for_id,
    tstzrange(p.starts_at, p.ends_at) AS span, NULL::bigint AS seconds, NULL::bigint AS quantity,
    NULL::bigint AS micro_per_hour, n.currency, NULL::bigint AS rate_id, NULL::bigint AS list_per_hour, l.uid AS lease,
    w.username AS person, f.slug AS sku, coalesce(f.name, e.description) AS flavor, m.name AS device_model,
    o.slug AS account,
    NULL AS project, '{{}}'::jsonb AS tags, NULL::numeric AS carbon_mg, NULL::numeric AS energy_mj,
    NULL AS energy_basis,
    CASE WHEN n.amount_micro < 0 THEN 'Credit note ' ELSE 'Debit note ' END || coalesce(n.number, n.uid)
      || ' to invoice ' || b.number || ', line ' || x.position || ': ' || n.reason AS note, n.amount_micro AS billed
  FROM unnest({notes}::bigint[], {note_numbers}::text[], {note_teams}::text[], {note_centres}::text[])
    AS c(note_id, number_of_invoice, team, cost_centre)
  JOIN billing_invoicenote n ON n.id = c.note_id JOIN billing_invoiceline x ON x.id = n.line_id
  JOIN billing_invoice b ON b.id = x.invoice_id JOIN billing_billingperiod p ON p.id = b.period_id
  LEFT JOIN billing_usagetotal t ON t.line_id = x.id LEFT JOIN billing_externalusage e ON e.billed_on_id = x.id
  LEFT JOIN accounts_user w ON w.id = coalesce(t.user_id, e.user_id)
  LEFT JOIN catalog_flavor f ON f.id = t.flavor_id LEFT JOIN fleet_devicemodel m ON m.id = f.device_model_id
  JOIN teams_team o ON o.id = n.team_id LEFT JOIN leases_lease l ON l.id = n.lease_id) rated
ORDER BY note_id
"""
# Devices outside Berth: the source provides and publishes them, and the amount is the price that there is.
_EXTERNAL = """
SELECT {columns} FROM (
  SELECT x.id AS external_id, c.number_of_invoice, c.team, coalesce(nullif(b.cost_centre, ''), c.cost_centre)
      AS cost_centre, NULL::bigint AS late_for_id, tstzrange(x.starts_at, x.ends_at) AS span,
    extract(epoch FROM x.ends_at - x.starts_at)::bigint AS seconds, NULL::bigint AS quantity,
    NULL::bigint AS micro_per_hour, x.currency, NULL::bigint AS rate_id, NULL::bigint AS list_per_hour,
    x.external_id AS lease, w.username AS person, NULL AS sku, x.description AS flavor, NULL AS device_model,
    o.slug AS account, b.project, coalesce(b.tags, '{{}}') AS tags, NULL::numeric AS carbon_mg,
    NULL::numeric AS energy_mj, NULL AS energy_basis, x.description AS note, x.amount_micro AS billed,
    CASE WHEN x.energy_mj IS NULL THEN x.source ELSE {issuer} END AS source,
    x.energy_mj AS charged_mj, x.micro_per_kwh AS kwh_price
  FROM unnest({rows}::bigint[], {numbers}::text[], {teams}::text[], {centres}::text[])
    AS c(row_id, number_of_invoice, team, cost_centre)
  JOIN billing_externalusage x ON x.id = c.row_id JOIN teams_team o ON o.id = x.team_id
  LEFT JOIN accounts_user w ON w.id = x.user_id LEFT JOIN billing_usagelabel b ON b.id = x.label_id) rated
ORDER BY external_id
"""


def write_focus(file: IO[bytes], period: BillingPeriod, charges: Sequence[Charge]) -> None:
    """Write the usage and notes behind these charges of a month as FOCUS 1.2; only the header where there are none."""
    organisation = Team.objects.filter(parent=None).order_by("pk").first()
    given = {
        "account": organisation.slug if organisation else "",
        "issuer": organisation.name if organisation else "",
        "starts": f"{period.starts_at.astimezone(UTC):{_WRITTEN}}",
        "ends": f"{period.ends_at.astimezone(UTC):{_WRITTEN}}",
    }
    columns, of_external = _columns(COLUMNS, given), _columns(COLUMNS | OF_EXTERNAL, given)
    used = [c for c in charges if c.is_usage]
    notes = [c for c in charges if c.note is not None]
    usage = sql.SQL(_USAGE).format(
        totals=sql.Literal([c.total_id for c in used]),
        amounts=sql.Literal([c.amount_micro for c in used]),
        numbers=sql.Literal([c.number for c in used]),
        teams=sql.Literal([c.team_name for c in used]),
        centres=sql.Literal([c.cost_centre for c in used]),
        columns=columns,
        energy=sql.SQL(RECORD_ENERGY).format(
            period=sql.Literal(period.pk),
            since=sql.Literal(period.starts_at),
            until=sql.Literal(period.ends_at),
        ),
    )
    noted = sql.SQL(_NOTES).format(
        notes=sql.Literal([c.note.pk for c in notes if c.note]),
        note_numbers=sql.Literal([c.number for c in notes]),
        note_teams=sql.Literal([c.team_name for c in notes]),
        note_centres=sql.Literal([c.cost_centre for c in notes]),
        columns=columns,
    )
    outside = [c for c in charges if c.external is not None]
    external = sql.SQL(_EXTERNAL).format(
        rows=sql.Literal([c.external.pk for c in outside if c.external]),
        numbers=sql.Literal([c.number for c in outside]),
        teams=sql.Literal([c.team_name for c in outside]),
        centres=sql.Literal([c.cost_centre for c in outside]),
        issuer=sql.Literal(given["issuer"]),
        columns=of_external,
    )
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL statement_timeout = '{PATIENCE}'; SET LOCAL work_mem = '{SORTED_IN}'")
        # Nothing tells the planner how many rows the totals have: it guesses one, and would sum the energy of the whole
        # month anew for each record.
        cursor.execute("SET LOCAL enable_nestloop = off")
        for query, head in ((usage, ", HEADER"), (noted, ""), (external, "")):
            written = sql.SQL("COPY ({}) TO STDOUT (FORMAT csv{})").format(query, sql.SQL(head))
            with cursor.cursor.copy(written) as copy:
                for block in copy:
                    file.write(block)


def _columns(columns: Mapping[str, str], given: Mapping[str, object]) -> sql.Composable:
    return sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(_expression(written, given), sql.Identifier(name))
        for name, written in columns.items()
    )


def _expression(written: str, given: Mapping[str, object]) -> sql.Composable:
    """Return a column of ``COLUMNS`` as SQL, with what is the same in every row as literals."""
    for word, form in _WORDS:
        if written.startswith(word):
            before, after = form.split("{}")
            return sql.SQL("{}{}{}").format(
                sql.SQL(before), _expression(written[len(word) : -1], given), sql.SQL(after)
            )
    for name, value in given.items():
        if written == f"%({name})s":
            return sql.Literal(value)
    return sql.SQL(written)
