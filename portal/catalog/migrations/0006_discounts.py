"""Discounts: dated rules, and the one function that says which of them applies to a lease when."""

import django.contrib.postgres.fields
import django.contrib.postgres.fields.ranges
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

# A time in parts, each with the largest discount that holds in all of it, or none. Hours are those of the clocks in
# the rule's zone: where clocks go forward over the end of a time, it ends where it began. Parts are cut wherever a rule
# for this payer begins or ends: what is past never gets another cut, as rules begin and end in the future only.
APPLIES = """
CREATE FUNCTION catalog_discounted(payer bigint, preemptible boolean, since timestamptz, until timestamptz)
RETURNS TABLE (begins timestamptz, ends timestamptz, discount_id bigint, off_milli integer) LANGUAGE sql STABLE AS $$
  WITH held AS (
    SELECT d.id, d.off_milli, d.valid * tstzrange(since, greatest(since, until)) * w.span AS span
    FROM catalog_discount d CROSS JOIN LATERAL (
      SELECT tstzrange(NULL, NULL) AS span WHERE d.days = '{}'
      UNION ALL
      SELECT tstzrange(h.first, greatest(h.first, h.last)) FROM generate_series(
          date_trunc('day', since AT TIME ZONE d.zone) - interval '1 day', until AT TIME ZONE d.zone, interval '1 day')
        AS g (day) CROSS JOIN LATERAL (
          SELECT (g.day + make_interval(mins => d.from_minute)) AT TIME ZONE d.zone AS first,
            (g.day + make_interval(mins => d.to_minute + CASE WHEN d.to_minute <= d.from_minute THEN 1440 ELSE 0 END))
              AT TIME ZONE d.zone AS last) h
      WHERE d.days <> '{}' AND extract(isodow FROM g.day)::int - 1 = ANY(d.days)) w
    WHERE d.valid && tstzrange(since, greatest(since, until)) AND (preemptible OR NOT d.only_preemptible)
    AND (d.team_id IS NULL OR d.team_id = ANY((SELECT lineage FROM teams_team WHERE id = payer)::bigint[]))),
  parts AS (
    SELECT at, lead(at) OVER (ORDER BY at) AS next_at FROM (
      SELECT since UNION SELECT until UNION SELECT lower(span) FROM held WHERE NOT isempty(span)
      UNION SELECT upper(span) FROM held WHERE NOT isempty(span)) cuts (at) WHERE since < until)
  SELECT p.at, p.next_at, best.id, best.off_milli::integer FROM parts p LEFT JOIN LATERAL (
    SELECT held.id, held.off_milli FROM held WHERE held.span @> p.at ORDER BY held.off_milli DESC, held.id LIMIT 1)
    best ON true
  WHERE p.next_at IS NOT NULL AND EXISTS (SELECT FROM catalog_discount)
  UNION ALL
  SELECT since, until, NULL::bigint, NULL::integer WHERE since < until AND NOT EXISTS (SELECT FROM catalog_discount)
$$;
"""

GUARDED = """
CREATE FUNCTION catalog_discount_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    RAISE EXCEPTION 'catalog_discount is never emptied' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF TG_OP <> 'DELETE' THEN
    PERFORM now() AT TIME ZONE NEW.zone;
  END IF;
  IF TG_OP = 'INSERT' OR lower(OLD.valid) > clock_timestamp() THEN
    IF TG_OP <> 'DELETE' AND (lower(NEW.valid) IS NULL OR lower(NEW.valid) < clock_timestamp() OR isempty(NEW.valid)) THEN
      RAISE EXCEPTION 'a discount begins in the future' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  IF TG_OP = 'DELETE' OR (NEW.id, NEW.name, NEW.off_milli, NEW.team_id, NEW.only_preemptible, NEW.days, NEW.from_minute,
      NEW.to_minute, NEW.zone, lower(NEW.valid)) IS DISTINCT FROM (OLD.id, OLD.name, OLD.off_milli, OLD.team_id,
      OLD.only_preemptible, OLD.days, OLD.from_minute, OLD.to_minute, OLD.zone, lower(OLD.valid))
     OR (NEW.valid <> OLD.valid AND (isempty(NEW.valid) OR upper(OLD.valid) <= clock_timestamp()
       OR upper(NEW.valid) <= clock_timestamp())) THEN
    RAISE EXCEPTION 'a discount that has begun can only be given an end in the future'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER catalog_discount_guard BEFORE INSERT OR UPDATE OR DELETE ON catalog_discount
  FOR EACH ROW EXECUTE FUNCTION catalog_discount_guard();
CREATE TRIGGER catalog_discount_stays BEFORE TRUNCATE ON catalog_discount
  FOR EACH STATEMENT EXECUTE FUNCTION catalog_discount_guard();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0005_queue_and_time"),
        ("teams", "0002_drop_monthly_budget"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Discount",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=60)),
                ("off_milli", models.PositiveSmallIntegerField()),
                ("only_preemptible", models.BooleanField(default=False)),
                (
                    "days",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveSmallIntegerField(), default=list, size=None
                    ),
                ),
                ("from_minute", models.PositiveSmallIntegerField(default=0)),
                ("to_minute", models.PositiveSmallIntegerField(default=0)),
                ("zone", models.CharField(default="UTC", max_length=60)),
                ("valid", django.contrib.postgres.fields.ranges.DateTimeRangeField()),
                ("created_at", models.DateTimeField()),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="discounts",
                        to="teams.team",
                    ),
                ),
            ],
            options={
                "ordering": ["valid", "id"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("off_milli__gte", 1), ("off_milli__lte", 1000)),
                        name="discount_is_a_part",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("days", []),
                            models.Q(
                                ("days__contained_by", [0, 1, 2, 3, 4, 5, 6]),
                                ("from_minute__lt", 1440),
                                ("to_minute__lte", 1440),
                                models.Q(("from_minute", models.F("to_minute")), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="discount_hours_sane",
                    ),
                ],
            },
        ),
        migrations.RunSQL(APPLIES, migrations.RunSQL.noop),
        migrations.RunSQL(GUARDED, migrations.RunSQL.noop),
    ]
