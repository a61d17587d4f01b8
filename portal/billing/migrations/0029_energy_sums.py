"""Sums of the hours of energy by month and by day, kept by the statement that writes hours; nothing else writes them.

As totals of usage are (0006), and with the same key but the price. What hours weigh by their factors is in the sums, so
a factor of carbon or a PUE that is added for time gone by makes those of its months anew.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

KEY = "period_id, team_id, user_id, flavor_id"
COLUMNS = (
    "hours",
    "measured_s",
    "measured_mj",
    "estimated_s",
    "estimated_mj",
    "factored",
    "carbon",
    "no_factor_mj",
)
SUMS = ", ".join(COLUMNS)
WEIGHTS = COLUMNS[5:]


def factor_at(kind: str, site: str) -> str:
    return f"""(SELECT value_milli FROM (
      SELECT value_milli, valid FROM billing_energyfactor WHERE kind = '{kind}' AND site = {site}
        AND lower(valid) <= h.begins ORDER BY lower(valid) DESC LIMIT 1) AS last WHERE valid @> h.begins)"""  # noqa: S608 (our own words)


# Hours with what makes their sums. Month, day and factors are looked up once for each site and instant and kept, or the
# planner, which knows little of the rows of a statement, would do so for each of them. A day begins at midnight in the
# zone of its month, the first of two; a first month's days end with the month, where zones change.
KEYED = f"""WITH m AS MATERIALIZED (
    SELECT h.site, h.begins, w.id AS period_id,
      least(greatest(d.day + (billing_midnight(d.day + 1, w.zone) <= h.begins)::int, w.month),
        (w.month + interval '1 month' - interval '1 day')::date) AS day,
      coalesce({factor_at("carbon", "h.site")}, {factor_at("carbon", "''")})::numeric
      * coalesce({factor_at("pue", "h.site")}, {factor_at("pue", "''")}) AS weight
    FROM (SELECT DISTINCT site, begins FROM {{hours}} x) h
    JOIN billing_billingperiod w ON w.starts_at <= h.begins AND w.ends_at > h.begins
    CROSS JOIN LATERAL (SELECT (h.begins AT TIME ZONE w.zone)::date AS day) d),
  keyed AS (
    SELECT m.period_id, l.team_id, l.user_id, l.flavor_id, m.day, 1 AS hours, e.measured_s, e.measured_mj,
      e.estimated_s, e.estimated_mj, (m.weight IS NOT NULL)::int AS factored,
      coalesce((e.measured_mj + e.estimated_mj) * m.weight, 0) AS carbon,
      CASE WHEN m.weight IS NULL THEN e.measured_mj + e.estimated_mj ELSE 0 END AS no_factor_mj
    FROM {{hours}} e JOIN leases_lease l ON l.id = e.lease_id JOIN m ON (m.site, m.begins) = (e.site, e.begins))"""  # noqa: S608 (our own words)
SUMMED = ", ".join(f"sum({column})" for column in COLUMNS)
ADDED = ", ".join(f"{column} = o.{column} + EXCLUDED.{column}" for column in COLUMNS)
TAKEN = ", ".join(f"{column} = o.{column} - k.{column}" for column in COLUMNS)
NAMED = ", ".join(f"sum({column}) AS {column}" for column in COLUMNS)
WEIGHED = ", ".join(f"{column} = k.{column}" for column in WEIGHTS)


def add(hours: str) -> str:
    """Return the statements that put hours into the sums, in the order of the key: writers never wait in a circle."""
    keyed = KEYED.format(hours=hours)
    return f"""
  {keyed}
  INSERT INTO billing_energytotal AS o ({KEY}, {SUMS}) SELECT {KEY}, {SUMMED} FROM keyed GROUP BY {KEY} ORDER BY {KEY}
    ON CONFLICT ({KEY}) DO UPDATE SET {ADDED};
  {keyed}
  INSERT INTO billing_energyday AS o (total_id, day, {SUMS})
  SELECT t.id, k.day, {", ".join(f"sum(k.{column})" for column in COLUMNS)}
    FROM keyed k JOIN billing_energytotal t USING ({KEY}) GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (total_id, day) DO UPDATE SET {ADDED};"""  # noqa: S608 (our own words)


OF_MONTH = "(SELECT * FROM billing_leaseenergy WHERE begins >= span.starts_at AND begins < span.ends_at)"
KEPT = f"""
CREATE FUNCTION billing_energy_is_summed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM (SELECT DISTINCT begins FROM added) h LEFT JOIN billing_billingperiod w
             ON w.starts_at <= h.begins AND w.ends_at > h.begins WHERE w.id IS NULL) THEN
    RAISE EXCEPTION 'an hour of energy begins in a month of the books'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;{add("added")}
  RETURN NULL;
END $$;
CREATE FUNCTION billing_energy_is_taken_back() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  touched bigint[];
BEGIN
  {KEYED.format(hours="removed")}
  SELECT array_agg(held.id) INTO touched FROM (
    SELECT o.id FROM billing_energytotal o WHERE ({KEY}) IN (SELECT {KEY} FROM keyed) ORDER BY {KEY} FOR UPDATE) held;
  {KEYED.format(hours="removed")}, k AS (SELECT {KEY}, day, {NAMED} FROM keyed GROUP BY {KEY}, day)
  UPDATE billing_energyday o SET {TAKEN} FROM k JOIN billing_energytotal t USING ({KEY})
   WHERE o.total_id = t.id AND o.day = k.day;
  {KEYED.format(hours="removed")}, k AS (SELECT {KEY}, {NAMED} FROM keyed GROUP BY {KEY})
  UPDATE billing_energytotal o SET {TAKEN} FROM k
   WHERE (o.period_id, o.team_id, o.user_id, o.flavor_id) = (k.period_id, k.team_id, k.user_id, k.flavor_id);
  DELETE FROM billing_energyday WHERE total_id = ANY(touched) AND hours = 0;
  DELETE FROM billing_energytotal WHERE id = ANY(touched) AND hours = 0;
  RETURN NULL;
END $$;
-- An update adds before it takes away: no sum comes to nothing in between.
CREATE TRIGGER billing_energy_a_added AFTER INSERT ON billing_leaseenergy
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_energy_is_summed();
CREATE TRIGGER billing_energy_a_updated AFTER UPDATE ON billing_leaseenergy
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_energy_is_summed();
CREATE TRIGGER billing_energy_b_updated AFTER UPDATE ON billing_leaseenergy
  REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION billing_energy_is_taken_back();
CREATE TRIGGER billing_energy_b_removed AFTER DELETE ON billing_leaseenergy
  REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION billing_energy_is_taken_back();

-- What has begun only gets an end that is to come, and what is planned has no hours: a new factor alone can be about
-- hours that there are. Whoever writes hours is kept out meanwhile.
CREATE FUNCTION billing_energy_is_weighed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  span record;
BEGIN
  PERFORM pg_advisory_xact_lock(422776367987);
  FOR span IN
    SELECT w.id, w.starts_at, w.ends_at FROM billing_billingperiod w
     WHERE EXISTS (SELECT FROM added a JOIN billing_leaseenergy e ON a.valid @> e.begins
       AND e.begins >= greatest(w.starts_at, lower(a.valid)) AND e.begins < least(w.ends_at, upper(a.valid))
       WHERE a.kind <> 'price' AND a.valid && tstzrange(w.starts_at, w.ends_at))
     ORDER BY w.starts_at
  LOOP
    {KEYED.format(hours=OF_MONTH)}, k AS (SELECT {KEY}, day, {NAMED} FROM keyed GROUP BY {KEY}, day)
    UPDATE billing_energyday o SET {WEIGHED} FROM k JOIN billing_energytotal t USING ({KEY})
     WHERE o.total_id = t.id AND o.day = k.day;
    UPDATE billing_energytotal o SET {WEIGHED} FROM (
      SELECT d.total_id, {", ".join(f"sum(d.{column}) AS {column}" for column in WEIGHTS)}
        FROM billing_energyday d JOIN billing_energytotal t ON t.id = d.total_id WHERE t.period_id = span.id GROUP BY 1) k
     WHERE o.id = k.total_id;
  END LOOP;
  RETURN NULL;
END $$;
CREATE TRIGGER billing_energy_is_weighed AFTER INSERT ON billing_energyfactor
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_energy_is_weighed();
"""  # noqa: S608 (our own words)

# As long as it takes. A worker of the release before may still write hours: they wait, and are summed by the triggers.
# A month that the books do not have yet is opened as a look at its page would.
FILL = f"""
SET LOCAL statement_timeout = 0;
LOCK TABLE billing_leaseenergy IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO billing_billingperiod (month, starts_at, ends_at, zone, state)
SELECT first, billing_month_start(first), billing_month_start((first + interval '1 month')::date),
    billing_month_zone(first), 'open'
  FROM (SELECT DISTINCT date_trunc('month', begins AT TIME ZONE billing_month_zone(
          date_trunc('month', begins AT TIME ZONE 'UTC')::date))::date AS first
        FROM (SELECT DISTINCT begins FROM billing_leaseenergy) h
       WHERE NOT EXISTS (SELECT FROM billing_billingperiod w WHERE w.starts_at <= h.begins AND w.ends_at > h.begins)) m
 ORDER BY first ON CONFLICT (month) DO NOTHING;{add("billing_leaseenergy")}
ANALYZE billing_energytotal;
ANALYZE billing_energyday;
SET CONSTRAINTS ALL IMMEDIATE;
"""  # noqa: S608 (our own words)
GUARDED = """
CREATE FUNCTION billing_energy_sums_follow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF pg_trigger_depth() > 1 THEN
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  RAISE EXCEPTION 'sums are what hours of energy add up to: nothing else writes them'
    USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
END $$;
CREATE TRIGGER billing_energy_sums_follow BEFORE INSERT OR UPDATE OR DELETE ON billing_energytotal
  FOR EACH ROW EXECUTE FUNCTION billing_energy_sums_follow();
CREATE TRIGGER billing_energy_sums_follow BEFORE INSERT OR UPDATE OR DELETE ON billing_energyday
  FOR EACH ROW EXECUTE FUNCTION billing_energy_sums_follow();
CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON billing_energytotal
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();
CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON billing_energyday
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();
"""


def summed() -> list[tuple[str, models.Field]]:
    return [
        ("hours", models.PositiveIntegerField()),
        ("measured_s", models.PositiveBigIntegerField()),
        ("measured_mj", models.PositiveBigIntegerField()),
        ("estimated_s", models.PositiveBigIntegerField()),
        ("estimated_mj", models.PositiveBigIntegerField()),
        ("factored", models.PositiveIntegerField()),
        ("carbon", models.DecimalField(decimal_places=0, max_digits=40)),
        ("no_factor_mj", models.PositiveBigIntegerField()),
    ]


def key_to(table: str) -> models.ForeignKey:
    return models.ForeignKey(
        db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to=table
    )


PK = ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0028_electricity_price_kept"),
        ("catalog", "0005_queue_and_time"),
        ("teams", "0007_delegation"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="EnergyTotal",
            fields=[
                PK, *summed(), ("period", key_to("billing.billingperiod")), ("team", key_to("teams.team")),
                ("user", key_to(settings.AUTH_USER_MODEL)), ("flavor", key_to("catalog.flavor")),
            ],
            options={"ordering": ["period", "team", "id"]},
        ),
        migrations.CreateModel(
            name="EnergyDay",
            fields=[
                PK, *summed(), ("day", models.DateField()),
                (
                    "total",
                    models.ForeignKey(
                        db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="days",
                        to="billing.energytotal",
                    ),
                ),
            ],
            options={"ordering": ["day"]},
        ),
        migrations.AddConstraint(
            "energytotal",
            models.UniqueConstraint(fields=("period", "team", "user", "flavor"), name="energy_total_once"),
        ),
        migrations.AddConstraint(
            "energyday", models.UniqueConstraint(fields=("total", "day"), name="energy_day_once")
        ),
        *(migrations.RunSQL(sql, migrations.RunSQL.noop) for sql in (FILL, KEPT, GUARDED)),
    ]  # fmt: skip
