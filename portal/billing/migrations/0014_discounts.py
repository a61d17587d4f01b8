"""Usage says which discount lowered its price; the database compares it with the rules."""

import django.db.models.deletion
from django.db import migrations, models

CHECKED = """
CREATE OR REPLACE FUNCTION billing_usage_is_right() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- A close that is under way is waited for, and seen by what follows.
  PERFORM 1 FROM billing_billingperiod
    WHERE id IN (SELECT period_id FROM added UNION SELECT late_for_id FROM added) ORDER BY id FOR SHARE;
  PERFORM 1 FROM catalog_rate WHERE id IN (SELECT rate_id FROM added) ORDER BY id FOR SHARE;
  IF EXISTS (SELECT FROM added a JOIN billing_billingperiod month ON month.id = a.period_id
             WHERE month.state <> 'open') THEN
    RAISE EXCEPTION 'a period that is closed or closing gets no usage'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
  END IF;
  IF EXISTS (SELECT FROM added a JOIN billing_billingperiod month ON month.id = a.period_id
             JOIN billing_billingperiod own ON own.id = a.late_for_id
             WHERE own.state <> 'closed' OR own.ends_at > month.starts_at) THEN
    RAISE EXCEPTION 'an adjustment belongs to an earlier period that is closed'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT FROM added a JOIN billing_billingperiod own ON own.id = coalesce(a.late_for_id, a.period_id)
             WHERE NOT tstzrange(own.starts_at, own.ends_at) @> a.span OR isempty(a.span)) THEN
    RAISE EXCEPTION 'usage must lie inside its period' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT FROM added a WHERE a.seconds <> extract(epoch FROM upper(a.span) - lower(a.span))) THEN
    RAISE EXCEPTION 'usage seconds must equal its span' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT FROM added a JOIN leases_lease l ON l.id = a.lease_id
             LEFT JOIN billing_refundrule f ON f.id = a.refund_id AND f.valid @> l.ended_at
             WHERE a.refund_id IS NOT NULL AND f.id IS NULL) THEN
    RAISE EXCEPTION 'usage is refunded by a rule that was in force when its lease ended'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT FROM added a JOIN leases_lease l ON l.id = a.lease_id JOIN catalog_flavor f ON f.id = l.flavor_id
             LEFT JOIN catalog_rate r ON r.id = a.rate_id AND r.valid @> a.span
               AND r.device_model_id = f.device_model_id
             LEFT JOIN catalog_ratecard c ON c.id = r.card_id LEFT JOIN billing_refundrule e ON e.id = a.refund_id
             LEFT JOIN catalog_discount o ON o.id = a.discount_id
             WHERE a.team_id <> l.team_id OR a.share_milli <> l.share_milli OR c.currency IS DISTINCT FROM a.currency
             OR a.micro_per_hour <> r.micro_per_hour * l.price_milli / 1000 * (1000 - coalesce(o.off_milli, 0)) / 1000
               * (1000 - coalesce(e.credit_milli, 0)) / 1000) THEN
    RAISE EXCEPTION 'usage must have the team and share of its lease and a price that was in force'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT FROM added a JOIN leases_lease l ON l.id = a.lease_id
             CROSS JOIN LATERAL catalog_discounted(l.team_id, l.is_preemptible, lower(a.span), upper(a.span)) d
             WHERE (a.discount_id IS NOT NULL OR EXISTS (SELECT FROM catalog_discount o WHERE o.valid && a.span))
             AND d.discount_id IS DISTINCT FROM a.discount_id) THEN
    RAISE EXCEPTION 'usage has the largest discount that applies to all of it'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NULL;
END $$;
"""

# Whether it may be preempted says which discounts a lease has.
LEASES = """
CREATE TRIGGER billing_lease_keeps_its_discounts BEFORE UPDATE OF is_preemptible ON leases_lease FOR EACH ROW
  WHEN (OLD.is_preemptible <> NEW.is_preemptible) EXECUTE FUNCTION billing_lease_keeps_its_price();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0013_months_in_a_zone"),
        ("catalog", "0006_discounts"),
        ("leases", "0023_keyset_lists"),
        ("teams", "0002_drop_monthly_budget"),
    ]

    operations = [
        migrations.AddField(
            model_name="usagerecord",
            name="discount",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="catalog.discount",
            ),
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(
                condition=models.Q(("discount", None), _negated=True),
                fields=["discount"],
                name="usage_discounted",
            ),
        ),
        migrations.RunSQL(CHECKED, migrations.RunSQL.noop),
        migrations.RunSQL(LEASES, migrations.RunSQL.noop),
    ]
