"""Totals of usage, kept by the statement that writes usage; nothing else writes them.

A month is read by its totals, some dozen rows a team, whatever number of records it has.
"""

from django.db import migrations

# What makes a total; and of a record of usage what each UTC day has of it.
KEY = "period_id, team_id, user_id, flavor_id, micro_per_hour, currency, late_for_id"
SAME_KEY = """t.period_id = k.period_id AND t.team_id = k.team_id AND t.user_id = k.user_id
      AND t.flavor_id = k.flavor_id AND t.micro_per_hour = k.micro_per_hour AND t.currency = k.currency
      AND t.late_for_id IS NOT DISTINCT FROM k.late_for_id"""
KEYED = """SELECT c.lease_id, c.span, c.seconds, c.share_milli, c.share_milli_seconds, c.period_id, c.team_id, l.user_id,
      l.flavor_id, c.micro_per_hour, c.currency, c.late_for_id FROM {source} c JOIN leases_lease l ON l.id = c.lease_id"""
DAYS = f"""SELECT t.id AS total_id, g.day::date AS day, sum(p.seconds) AS seconds,
      sum(p.seconds * k.share_milli) AS share_milli_seconds
    FROM keyed k JOIN billing_usagetotal t ON {SAME_KEY}
    CROSS JOIN LATERAL generate_series(date_trunc('day', lower(k.span) AT TIME ZONE 'UTC'),
      upper(k.span) AT TIME ZONE 'UTC' - interval '1 microsecond', interval '1 day') AS g(day)
    CROSS JOIN LATERAL (SELECT extract(epoch FROM
      least(upper(k.span) AT TIME ZONE 'UTC', g.day + interval '1 day')
      - greatest(lower(k.span) AT TIME ZONE 'UTC', g.day))::bigint AS seconds) p
    GROUP BY 1, 2"""  # noqa: S608 (our own words)

KEPT = f"""
CREATE FUNCTION billing_usage_is_totalled() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- In the order of the key, so that two who write usage of one team wait for each other and never in a circle.
  WITH keyed AS ({KEYED.format(source="added")}),
  k AS (SELECT {KEY}, lease_id, count(*) AS n, sum(seconds) AS seconds, sum(share_milli_seconds) AS quantity
    FROM keyed GROUP BY {KEY}, lease_id)
  INSERT INTO billing_usagetotal AS t ({KEY}, records, leases, seconds, share_milli_seconds)
  SELECT {KEY}, sum(n),
    -- a lease counts once, however often it stopped and went on: with the first record that it has under this key
    count(*) FILTER (WHERE n = (SELECT count(*) FROM billing_usagerecord o
      WHERE o.lease_id = k.lease_id AND o.period_id = k.period_id AND o.micro_per_hour = k.micro_per_hour
      AND o.currency = k.currency AND o.late_for_id IS NOT DISTINCT FROM k.late_for_id)),
    sum(seconds), sum(quantity)
  FROM k GROUP BY {KEY} ORDER BY {KEY}
  ON CONFLICT ({KEY}) DO UPDATE SET records = t.records + EXCLUDED.records, leases = t.leases + EXCLUDED.leases,
    seconds = t.seconds + EXCLUDED.seconds, share_milli_seconds = t.share_milli_seconds + EXCLUDED.share_milli_seconds;
  WITH keyed AS ({KEYED.format(source="added")}), d AS ({DAYS})
  INSERT INTO billing_usageday AS o (total_id, day, seconds, share_milli_seconds)
  SELECT total_id, day, seconds, share_milli_seconds FROM d ORDER BY total_id, day
  ON CONFLICT (total_id, day) DO UPDATE SET seconds = o.seconds + EXCLUDED.seconds,
    share_milli_seconds = o.share_milli_seconds + EXCLUDED.share_milli_seconds;
  RETURN NULL;
END $$;
CREATE TRIGGER billing_usage_is_totalled AFTER INSERT ON billing_usagerecord
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_usage_is_totalled();

CREATE FUNCTION billing_usage_is_taken_back() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  touched bigint[];
BEGIN
  -- Totals first and in the order of the key, as they are added to: whoever holds a total may write its days.
  SELECT array_agg(held.id) INTO touched FROM (
    SELECT t.id FROM billing_usagetotal t WHERE EXISTS (SELECT FROM ({KEYED.format(source="removed")}) k
    WHERE {SAME_KEY}) ORDER BY {KEY} FOR UPDATE) held;
  WITH keyed AS ({KEYED.format(source="removed")}), d AS ({DAYS})
  UPDATE billing_usageday o SET seconds = o.seconds - d.seconds,
    share_milli_seconds = o.share_milli_seconds - d.share_milli_seconds
  FROM d WHERE o.total_id = d.total_id AND o.day = d.day;
  WITH keyed AS ({KEYED.format(source="removed")}),
  held AS (SELECT {KEY}, lease_id, count(*) AS n, sum(seconds) AS seconds, sum(share_milli_seconds) AS quantity
    FROM keyed GROUP BY {KEY}, lease_id),
  k AS (SELECT {KEY}, sum(n) AS n, sum(seconds) AS seconds, sum(quantity) AS quantity,
      count(*) FILTER (WHERE NOT EXISTS (SELECT FROM billing_usagerecord o
        WHERE o.lease_id = held.lease_id AND o.period_id = held.period_id
        AND o.micro_per_hour = held.micro_per_hour AND o.currency = held.currency
        AND o.late_for_id IS NOT DISTINCT FROM held.late_for_id)) AS leases
    FROM held GROUP BY {KEY})
  UPDATE billing_usagetotal t SET records = t.records - k.n, leases = t.leases - k.leases,
    seconds = t.seconds - k.seconds, share_milli_seconds = t.share_milli_seconds - k.quantity
  FROM k WHERE {SAME_KEY};
  DELETE FROM billing_usageday WHERE total_id = ANY(touched) AND seconds = 0;
  DELETE FROM billing_usagetotal WHERE id = ANY(touched) AND records = 0;
  RETURN NULL;
END $$;
CREATE TRIGGER billing_usage_is_taken_back AFTER DELETE ON billing_usagerecord
  REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION billing_usage_is_taken_back();
"""  # noqa: S608 (our own words)

# As long as it takes, on years of usage; and with figures for the planner, that it joins by all of the key. A worker
# of the release before may still meter: what it wrote after the sums were read would be in no total.
FILL = f"""
SET LOCAL statement_timeout = 0;
LOCK TABLE billing_usagerecord IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO billing_usagetotal ({KEY}, records, leases, seconds, share_milli_seconds, line_id)
SELECT c.period_id, c.team_id, l.user_id, l.flavor_id, c.micro_per_hour, c.currency, c.late_for_id,
  count(*), count(DISTINCT c.lease_id), sum(c.seconds), sum(c.share_milli_seconds), max(c.line_id)
FROM billing_usagerecord c JOIN leases_lease l ON l.id = c.lease_id GROUP BY 1, 2, 3, 4, 5, 6, 7;
ANALYZE billing_usagetotal;
WITH keyed AS ({KEYED.format(source="billing_usagerecord")}), d AS ({DAYS})
INSERT INTO billing_usageday (total_id, day, seconds, share_milli_seconds)
SELECT total_id, day, seconds, share_milli_seconds FROM d;
SET CONSTRAINTS ALL IMMEDIATE;
"""  # noqa: S608 (our own words)

GUARDED = """
CREATE FUNCTION billing_totals_follow_usage() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  was billing_usagetotal%ROWTYPE;
  bill record;
BEGIN
  IF pg_trigger_depth() > 1 THEN
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  IF TG_TABLE_NAME = 'billing_usagetotal' AND TG_OP = 'UPDATE' THEN
    was := OLD;
    was.line_id := NEW.line_id;
    IF was IS NOT DISTINCT FROM NEW AND OLD.line_id IS NULL THEN
      SELECT i.is_issued, i.period_id, i.team_id, i.currency, l.late_for_id INTO bill
        FROM billing_invoiceline l JOIN billing_invoice i ON i.id = l.invoice_id WHERE l.id = NEW.line_id;
      IF NOT bill.is_issued AND (bill.period_id, bill.team_id, bill.currency, bill.late_for_id)
         IS NOT DISTINCT FROM (NEW.period_id, NEW.team_id, NEW.currency, NEW.late_for_id) THEN
        RETURN NEW;
      END IF;
    END IF;
  END IF;
  RAISE EXCEPTION 'totals are what usage adds up to: nothing else writes them'
    USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
END $$;
CREATE TRIGGER billing_totals_follow_usage BEFORE INSERT OR UPDATE OR DELETE ON billing_usagetotal
  FOR EACH ROW EXECUTE FUNCTION billing_totals_follow_usage();
CREATE TRIGGER billing_totals_follow_usage BEFORE INSERT OR UPDATE OR DELETE ON billing_usageday
  FOR EACH ROW EXECUTE FUNCTION billing_totals_follow_usage();
CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON billing_usagetotal
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();
CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON billing_usageday
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0005_usage_totals")]
    operations = [migrations.RunSQL(sql, migrations.RunSQL.noop) for sql in (FILL, KEPT, GUARDED)]
