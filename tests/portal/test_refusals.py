"""What the database refuses by itself: attacked with plain SQL, which goes through once the guard is dropped."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection, transaction

from portal.common.sql import execute, fetch
from tests.portal.builders import World
from tests.portal.test_invariants import busy  # noqa: F401

pytestmark = pytest.mark.django_db

# Name of the guard, how it is dropped, and what then goes through.
ATTACKS = (
    (
        "placements_never_overlap",
        "ALTER TABLE leases_placement DROP CONSTRAINT placements_never_overlap",
        "UPDATE leases_placement SET is_live = true, slots = int8range(0,8), period = tstzrange(now(), NULL),"
        " device_id = (SELECT min(id) FROM fleet_device) WHERE host_id IS NULL",
    ),
    (
        "host_memory_fits",
        "ALTER TABLE leases_sharedhost DROP CONSTRAINT host_memory_fits",
        "UPDATE leases_sharedhost SET used_memory_mib = memory_mib + 1",
    ),
    (
        "host_share_fits",
        "ALTER TABLE leases_sharedhost DROP CONSTRAINT host_share_fits",
        "UPDATE leases_sharedhost SET used_share_milli = 1001",
    ),
    (
        "host_clients_fit",
        "ALTER TABLE leases_sharedhost DROP CONSTRAINT host_clients_fit",
        "UPDATE leases_sharedhost SET clients = max_clients + 1",
    ),
    (
        "quota_ceiling_holds",
        "ALTER TABLE quotas_quota DROP CONSTRAINT quota_ceiling_holds",
        "UPDATE quotas_quota SET used_milli = ceiling_milli + 1 WHERE ceiling_milli IS NOT NULL",
    ),
    (
        "leases_leaserequest_state_guard",
        "DROP TRIGGER leases_leaserequest_state_guard ON leases_leaserequest",
        "UPDATE leases_leaserequest SET state = 'awaiting_approval' WHERE state = 'granted'",
    ),
    (
        "one_live_lease_per_part",
        "DROP INDEX one_live_lease_per_part; DROP INDEX one_wanted_lease_per_part",
        "UPDATE leases_lease SET request_id = (SELECT max(request_id) FROM leases_lease) WHERE state = 'active'",
    ),
    (
        "fleet_node_never_back",
        "DROP TRIGGER fleet_node_never_back ON fleet_node",
        "UPDATE fleet_node SET epoch = epoch - 1",
    ),
    (
        "fleet_node_never_back",
        "DROP TRIGGER fleet_node_never_back ON fleet_node",
        "UPDATE fleet_node SET last_seq = last_seq - 1",
    ),
    (
        "outbox_attempts_bounded",
        "ALTER TABLE common_outboxitem DROP CONSTRAINT outbox_attempts_bounded",
        "UPDATE common_outboxitem SET attempts = 101",
    ),
    (
        "idempotency_key_once",
        "ALTER TABLE api_idempotencykey DROP CONSTRAINT idempotency_key_once",
        "INSERT INTO api_idempotencykey (principal_id, key, request_hash, location, created_at)"
        " SELECT (SELECT min(id) FROM accounts_user), 'again', '\\x00', '', now() FROM generate_series(1, 2)",
    ),
    (
        "request_not_decided_by_author",
        "ALTER TABLE leases_leaserequest DROP CONSTRAINT request_not_decided_by_author",
        "UPDATE leases_leaserequest SET decided_by_id = author_id",
    ),
    (
        "one_rate_at_a_time",
        "ALTER TABLE catalog_rate DROP CONSTRAINT one_rate_at_a_time",
        "INSERT INTO catalog_rate (card_id, device_model_id, micro_per_hour, valid, created_at)"
        " SELECT card_id, device_model_id, 1, tstzrange(now(), NULL), now() FROM catalog_rate",
    ),
    (
        "billing_usage_frozen",
        "ALTER TABLE billing_usagerecord DISABLE TRIGGER USER",
        "UPDATE billing_usagerecord SET recorded_at = now()",
    ),
    (
        "billing_usage_is_right",
        "ALTER TABLE billing_usagerecord DISABLE TRIGGER USER",
        "INSERT INTO billing_usagerecord (lease_id, team_id, period_id, rate_id, span, seconds, share_milli,"
        " share_milli_seconds, micro_per_hour, currency, recorded_at) SELECT lease_id, team_id, period_id, rate_id,"
        " tstzrange(upper(span), upper(span) + interval '1 second'), 1, share_milli, share_milli,"
        " micro_per_hour + 1, currency, recorded_at FROM billing_usagerecord LIMIT 1",
    ),
    (
        "billing_totals_follow_usage",
        "ALTER TABLE billing_usagetotal DISABLE TRIGGER USER",
        "UPDATE billing_usagetotal SET seconds = seconds + 1",
    ),
    (
        "billing_invoice_frozen",
        "ALTER TABLE billing_invoice DISABLE TRIGGER USER",
        "UPDATE billing_invoice SET total_micro = 0",
    ),
    (
        "billing_note_guarded",
        "ALTER TABLE billing_invoicenote DISABLE TRIGGER USER",
        "UPDATE billing_invoicenote SET amount_micro = amount_micro - 10000",
    ),
    (
        "note_decided_by_a_second_person",
        "ALTER TABLE billing_invoicenote DISABLE TRIGGER USER;"
        " ALTER TABLE billing_invoicenote DROP CONSTRAINT note_decided_by_a_second_person",
        "UPDATE billing_invoicenote SET decided_by_id = proposed_by_id",
    ),
    (
        "audit_auditentry_append_only",
        "ALTER TABLE audit_auditentry DISABLE TRIGGER USER",
        "DELETE FROM audit_auditentry",
    ),
    (
        "leases_leaseevent_append_only",
        "ALTER TABLE leases_leaseevent DISABLE TRIGGER USER",
        "UPDATE leases_leaseevent SET reason = 'otherwise'",
    ),
    (
        "period_runs_forward",
        "ALTER TABLE billing_billingperiod DROP CONSTRAINT period_runs_forward,"
        " DISABLE TRIGGER billing_period_is_a_month",
        "INSERT INTO billing_billingperiod (month, zone, starts_at, ends_at, state)"
        " VALUES ('2031-01-01', 'UTC', '2031-01-01', '2031-01-01', 'open')",
    ),
    (
        "billing_period_is_a_month",
        "ALTER TABLE billing_billingperiod DISABLE TRIGGER billing_period_is_a_month",
        "INSERT INTO billing_billingperiod (month, zone, starts_at, ends_at, state)"
        " VALUES ('2031-01-01', 'UTC', '2031-01-01', '2031-01-31', 'open')",
    ),
    (
        "billing_zone_guarded",
        "ALTER TABLE billing_monthzone DISABLE TRIGGER billing_zone_guarded",
        "INSERT INTO billing_monthzone (since, name, set_at) VALUES ('2020-01-01', 'Asia/Shanghai', now())",
    ),
)


@pytest.mark.parametrize(
    ("guard", "drop", "attack"), ATTACKS, ids=[f"{n}-{a[0]}" for n, a in enumerate(ATTACKS)]
)
def test_the_database_refuses_and_only_its_guard_does(
    guard: str,
    drop: str,
    attack: str,
    busy: World,  # noqa: F811
) -> None:
    execute("SET CONSTRAINTS ALL IMMEDIATE")
    execute("UPDATE common_outboxitem SET attempts = 0")

    with pytest.raises(DatabaseError), transaction.atomic():
        execute(attack)

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(drop)
        cursor.execute(attack)
        assert cursor.rowcount > 0, "the attack touches nothing: it proves nothing"
        transaction.set_rollback(True)


MONEY = ("billing_", "catalog_rate")


def floats() -> list[tuple[str, str]]:
    """Return the columns in tables of money that do not count exactly."""
    rows = fetch(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        " AND (data_type IN ('real', 'double precision', 'money') OR (data_type = 'numeric' AND numeric_scale <> 0))"
    )
    return [(table, column) for table, column in rows if table.startswith(MONEY)]


def without_zone() -> list[tuple[str, str]]:
    """Return the columns that hold an instant without saying in which zone."""
    return fetch(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        " AND data_type = 'timestamp without time zone'"
    )


def test_money_is_counted_in_whole_micro_units(db: None) -> None:
    assert floats() == []
    execute("ALTER TABLE catalog_rate ADD COLUMN exact double precision")
    execute("ALTER TABLE catalog_rate ADD COLUMN cents numeric(10, 2), ADD COLUMN whole numeric(40, 0)")
    assert sorted(floats()) == [("catalog_rate", "cents"), ("catalog_rate", "exact")]


def test_every_instant_knows_its_zone(db: None) -> None:
    assert without_zone() == []
    execute("ALTER TABLE leases_lease ADD COLUMN seen timestamp")
    assert without_zone() == [("leases_lease", "seen")]
