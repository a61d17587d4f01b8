"""Charges as FOCUS 1.2 has them (FinOps Open Cost and Usage Specification): one row per usage record, as CSV.

PostgreSQL writes the file, so that a million rows cost seconds and no memory here. The billed cost of a line's records
adds up to the line, to the micro-unit: each has the difference of what the line had come to before and after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from django.db import connection, transaction
from psycopg import sql

from portal.billing.charges import Charge
from portal.billing.models import BillingPeriod
from portal.teams.models import Team

PATIENCE = "10min"  # of the one statement, on months of many millions of records

# Column and what is in it. Numbers carry their decimals, as FOCUS wants decimals and readers guess types by them;
# text that a spreadsheet would take for a formula begins with an apostrophe.
COLUMNS = {
    "BilledCost": "money(billed)",
    "BillingAccountId": "%(account)s",
    "BillingAccountName": "text(%(issuer)s)",
    "BillingAccountType": "'Organisation'",
    "BillingCurrency": "currency",
    "BillingPeriodEnd": "time(%(ends)s)",
    "BillingPeriodStart": "time(%(starts)s)",
    "ChargeCategory": "'Usage'",
    "ChargeClass": "CASE WHEN late_for_id IS NOT NULL THEN 'Correction' END",
    "ChargeDescription": "text(flavor || ', ' || lease)",
    "ChargeFrequency": "'Usage-Based'",
    "ChargePeriodEnd": "time(upper(span))",
    "ChargePeriodStart": "time(lower(span))",
    "ConsumedQuantity": "number(seconds / 3600.0)",
    "ConsumedUnit": "'Hours'",
    "ContractedCost": "number(quantity / 3600000.0 * micro_per_hour / 1000000.0)",
    "ContractedUnitPrice": "money(micro_per_hour)",
    "EffectiveCost": "money(billed)",
    "InvoiceId": "number_of_invoice",
    "InvoiceIssuerName": "text(%(issuer)s)",
    "ListCost": "number(quantity / 3600000.0 * list_per_hour / 1000000.0)",
    "ListUnitPrice": "money(list_per_hour)",
    "PricingCategory": "CASE WHEN micro_per_hour = list_per_hour THEN 'Standard' ELSE 'Other' END",
    "PricingQuantity": "number(quantity / 3600000.0)",
    "PricingUnit": "'GPU-Hours'",
    "ProviderName": "text(%(issuer)s)",
    "PublisherName": "text(%(issuer)s)",
    "ResourceId": "lease",
    "ResourceName": "lease",
    "ResourceType": "'GPU lease'",
    "ServiceCategory": "'Compute'",
    "ServiceName": "'GPU'",
    "ServiceSubcategory": "'Other (Compute)'",
    "SkuId": "sku",
    "SkuPriceId": "rate_id::text",
    "SubAccountId": "account",
    "SubAccountName": "text(team)",
    "SubAccountType": "'Team'",
    "Tags": "json_build_object('cost_centre', cost_centre, 'person', person, 'device_model', device_model)",
}
_WORDS = (
    ("money(", "round({} / 1000000.0, 6)"),
    ("number(", "round({}, 12)"),
    ("time(", """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""),
    ("text(", r"regexp_replace(regexp_replace({}, '[\r\n]', ' ', 'g'), '^(?=\s*[=+\-@\t|])', '''')"),
)
_ROWS = """
WITH charge AS (
  SELECT * FROM unnest({totals}::bigint[], {amounts}::bigint[], {numbers}::text[], {teams}::text[], {centres}::text[])
  AS c(total_id, amount, number_of_invoice, team, cost_centre)),
usage AS (
  SELECT c.*, t.share_milli_seconds AS whole, t.late_for_id, u.span, u.seconds, u.share_milli_seconds AS quantity,
    u.micro_per_hour, u.currency, u.rate_id, r.micro_per_hour AS list_per_hour, l.uid AS lease, p.username AS person,
    f.slug AS sku, f.name AS flavor, m.name AS device_model, o.slug AS account, u.id AS record_id,
    sum(u.share_milli_seconds) OVER (PARTITION BY t.id ORDER BY u.id) AS upto
  FROM charge c JOIN billing_usagetotal t ON t.id = c.total_id
  JOIN billing_usagerecord u ON u.period_id = t.period_id AND u.team_id = t.team_id
    AND u.micro_per_hour = t.micro_per_hour AND u.currency = t.currency
    AND u.late_for_id IS NOT DISTINCT FROM t.late_for_id
  JOIN leases_lease l ON l.id = u.lease_id AND l.user_id = t.user_id AND l.flavor_id = t.flavor_id
  JOIN accounts_user p ON p.id = t.user_id JOIN catalog_flavor f ON f.id = t.flavor_id
  JOIN fleet_devicemodel m ON m.id = f.device_model_id JOIN teams_team o ON o.id = t.team_id
  JOIN catalog_rate r ON r.id = u.rate_id)
SELECT {columns} FROM (
  SELECT *, div(amount::numeric * upto, whole) - div(amount::numeric * (upto - quantity), whole) AS billed
  FROM usage) rated
ORDER BY total_id, record_id
"""


def write_focus(file: IO[bytes], period: BillingPeriod, charges: Sequence[Charge]) -> None:
    """Write the usage behind these charges of a month as FOCUS 1.2; nothing but the header where there are none."""
    organisation = Team.objects.filter(parent=None).order_by("pk").first()
    given = {
        "account": organisation.slug if organisation else "",
        "issuer": organisation.name if organisation else "",
        "starts": period.starts_at,
        "ends": period.ends_at,
    }
    columns = sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(_expression(written, given), sql.Identifier(name))
        for name, written in COLUMNS.items()
    )
    query = sql.SQL(_ROWS).format(
        totals=sql.Literal([c.total_id for c in charges]),
        amounts=sql.Literal([c.amount_micro for c in charges]),
        numbers=sql.Literal([c.number for c in charges]),
        teams=sql.Literal([c.team_name for c in charges]),
        centres=sql.Literal([c.cost_centre for c in charges]),
        columns=columns,
    )
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL statement_timeout = '{PATIENCE}'")
        with cursor.cursor.copy(sql.SQL("COPY ({}) TO STDOUT (FORMAT csv, HEADER)").format(query)) as copy:
            for block in copy:
                file.write(block)


def _expression(written: str, given: dict[str, object]) -> sql.Composable:
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
