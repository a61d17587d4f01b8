"""Months begin at midnight in a zone: which month a period is, in which zone, and what the database refuses of both."""

from django.db import migrations, models

# Old periods are months in UTC. By a change of type, as no trigger would let a closed one be updated.
OLD_PERIODS = """
ALTER TABLE billing_billingperiod
  ADD COLUMN month timestamptz, ADD COLUMN zone varchar(64) NOT NULL DEFAULT 'UTC';
ALTER TABLE billing_billingperiod ALTER COLUMN month TYPE date USING (starts_at AT TIME ZONE 'UTC')::date,
  ALTER COLUMN month SET NOT NULL, ALTER COLUMN zone DROP DEFAULT,
  ADD CONSTRAINT billing_billingperiod_month_key UNIQUE (month);
"""

# 0x7A6F6E6573, portal.billing.periods.ZONES_LOCK: shared by who opens a period, held by who sets a zone.
ZONES = """
CREATE FUNCTION billing_month_zone(first date) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT coalesce((SELECT name FROM billing_monthzone WHERE since <= first ORDER BY since DESC LIMIT 1), 'UTC')
$$;

-- The first instant of a day. Where clocks skip midnight that is the instant of the change; where midnight comes
-- twice it is the first one, while PostgreSQL takes the second.
CREATE FUNCTION billing_midnight(day date, zone text) RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN (m - interval '1 hour') AT TIME ZONE zone >= day::timestamp THEN m - interval '1 hour' ELSE m END
  FROM (SELECT day::timestamp AT TIME ZONE zone AS m) midnight
$$;

-- A month begins where the period before it ends: so the months of two zones hang together, and a month that the books
-- have stays what it is when zone data change.
CREATE FUNCTION billing_month_start(first date) RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT coalesce(
    (SELECT starts_at FROM billing_billingperiod WHERE month = first),
    (SELECT ends_at FROM billing_billingperiod WHERE month = (first - interval '1 month')::date),
    billing_midnight(first, billing_month_zone(first)))
$$;

CREATE FUNCTION billing_zone_guarded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  touched date;
BEGIN
  PERFORM pg_advisory_xact_lock(525855516019);
  touched := CASE TG_OP WHEN 'INSERT' THEN NEW.since WHEN 'DELETE' THEN OLD.since ELSE least(OLD.since, NEW.since) END;
  IF EXISTS (SELECT FROM billing_billingperiod WHERE month >= touched) THEN
    RAISE EXCEPTION 'the books have a month from % on: its zone stays', touched
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_timezone_names WHERE name = NEW.name) THEN
    RAISE EXCEPTION 'the database knows no time zone %', NEW.name
      USING ERRCODE = 'check_violation', CONSTRAINT = 'zone_is_known';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER billing_zone_guarded BEFORE INSERT OR UPDATE OR DELETE ON billing_monthzone
  FOR EACH ROW EXECUTE FUNCTION billing_zone_guarded();
CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON billing_monthzone
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();

CREATE FUNCTION billing_period_is_a_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(525855516019);
  IF TG_OP = 'UPDATE' THEN
    RAISE EXCEPTION 'month and zone of period % never change', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF (NEW.starts_at, NEW.ends_at, NEW.zone) IS DISTINCT FROM (billing_month_start(NEW.month),
      billing_month_start((NEW.month + interval '1 month')::date), billing_month_zone(NEW.month)::varchar) THEN
    RAISE EXCEPTION 'a period is a whole month in its zone' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
-- After the guards of closed months, whose name comes first.
CREATE TRIGGER billing_period_is_a_month BEFORE INSERT ON billing_billingperiod
  FOR EACH ROW EXECUTE FUNCTION billing_period_is_a_month();
CREATE TRIGGER billing_period_stays_a_month BEFORE UPDATE OF month, zone ON billing_billingperiod
  FOR EACH ROW WHEN ((OLD.month, OLD.zone) IS DISTINCT FROM (NEW.month, NEW.zone))
  EXECUTE FUNCTION billing_period_is_a_month();
"""

# As in 0006, but that days begin at midnight in the zone of the period that the usage is of. What a first month has
# before its first midnight or after its last one, where zones change, is on its first and last day.
KEY = "period_id, team_id, user_id, flavor_id, micro_per_hour, currency, late_for_id"
SAME_KEY = """t.period_id = k.period_id AND t.team_id = k.team_id AND t.user_id = k.user_id
      AND t.flavor_id = k.flavor_id AND t.micro_per_hour = k.micro_per_hour AND t.currency = k.currency
      AND t.late_for_id IS NOT DISTINCT FROM k.late_for_id"""
KEYED = """SELECT c.lease_id, c.span, c.seconds, c.share_milli, c.share_milli_seconds, c.period_id, c.team_id, l.user_id,
      l.flavor_id, c.micro_per_hour, c.currency, c.late_for_id, w.zone, w.month AS first,
      (w.month + interval '1 month' - interval '1 day')::date AS last
    FROM {source} c JOIN leases_lease l ON l.id = c.lease_id
    JOIN billing_billingperiod w ON w.id = coalesce(c.late_for_id, c.period_id)"""
DAYS = f"""SELECT t.id AS total_id, g.day::date AS day, sum(p.seconds) AS seconds,
      sum(p.seconds * k.share_milli) AS share_milli_seconds
    FROM keyed k JOIN billing_usagetotal t ON {SAME_KEY}
    CROSS JOIN LATERAL generate_series(
      least(greatest((lower(k.span) AT TIME ZONE k.zone)::date, k.first), k.last)::timestamp,
      least(greatest(((upper(k.span) - interval '1 microsecond') AT TIME ZONE k.zone)::date, k.first), k.last),
      interval '1 day') AS g(day)
    CROSS JOIN LATERAL (SELECT extract(epoch FROM
      CASE WHEN g.day >= k.last THEN upper(k.span)
        ELSE least(upper(k.span), billing_midnight(g.day::date + 1, k.zone)) END
      - CASE WHEN g.day <= k.first THEN lower(k.span)
        ELSE greatest(lower(k.span), billing_midnight(g.day::date, k.zone)) END)::bigint AS seconds) p
    WHERE p.seconds > 0 GROUP BY 1, 2"""  # noqa: S608 (our own words)

KEPT = f"""
CREATE OR REPLACE FUNCTION billing_usage_is_totalled() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE OR REPLACE FUNCTION billing_usage_is_taken_back() RETURNS trigger LANGUAGE plpgsql AS $$
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
"""  # noqa: S608 (our own words)


class Migration(migrations.Migration):
    dependencies = [("billing", "0012_usage_checked_at_once")]
    operations = [
        migrations.CreateModel(
            name="MonthZone",
            fields=[
                ("since", models.DateField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=64)),
                ("set_at", models.DateTimeField()),
            ],
            options={"ordering": ["-since"]},
        ),
        migrations.AddConstraint(
            "monthzone",
            models.CheckConstraint(condition=models.Q(since__day=1), name="zone_holds_from_a_month"),
        ),
        migrations.RunSQL(
            OLD_PERIODS,
            migrations.RunSQL.noop,
            state_operations=[
                migrations.AddField("billingperiod", "month", models.DateField(unique=True)),
                migrations.AddField("billingperiod", "zone", models.CharField(max_length=64)),
            ],
        ),
        migrations.RunSQL(ZONES, migrations.RunSQL.noop),
        migrations.RunSQL(KEPT, migrations.RunSQL.noop),
    ]
