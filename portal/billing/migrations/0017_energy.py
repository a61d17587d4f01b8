"""What leases used, hour by hour, and the dated factors that make carbon of it: locked as closed months and prices are."""

import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.comparison
from django.conf import settings
from django.db import migrations, models

# A closed month keeps its energy and its carbon, as it keeps its lines.
GUARDED = """
CREATE FUNCTION billing_energy_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (CASE WHEN TG_OP = 'INSERT' THEN NEW.begins WHEN TG_OP = 'DELETE' THEN OLD.begins
      ELSE least(OLD.begins, NEW.begins) END) < billing_closed_until() THEN
    RAISE EXCEPTION 'the energy of a closed month never changes'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
  END IF;
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER billing_energy_frozen BEFORE INSERT OR UPDATE OR DELETE ON billing_leaseenergy
  FOR EACH ROW EXECUTE FUNCTION billing_energy_frozen();
CREATE TRIGGER billing_energy_never_emptied BEFORE TRUNCATE ON billing_leaseenergy
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();

CREATE FUNCTION billing_energy_factor_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(422776367987);
  IF TG_OP <> 'DELETE' AND (lower(NEW.valid) IS NULL OR isempty(NEW.valid)) THEN
    RAISE EXCEPTION 'a factor has a begin' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF TG_OP <> 'DELETE' AND (TG_OP = 'INSERT' OR lower(NEW.valid) <> lower(OLD.valid))
     AND lower(NEW.valid) < billing_closed_until() THEN
    RAISE EXCEPTION 'a factor begins in a closed month'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
  END IF;
  IF TG_OP = 'INSERT' THEN
    RETURN NEW;
  END IF;
  IF lower(OLD.valid) > clock_timestamp() AND (TG_OP = 'DELETE' OR lower(NEW.valid) > clock_timestamp()) THEN
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  IF TG_OP = 'DELETE' OR (NEW.id, NEW.kind, NEW.site, NEW.value_milli, NEW.source, lower(NEW.valid))
      IS DISTINCT FROM (OLD.id, OLD.kind, OLD.site, OLD.value_milli, OLD.source, lower(OLD.valid))
     OR (NEW.valid <> OLD.valid AND (upper(OLD.valid) <= now() OR upper(NEW.valid) < now())) THEN
    RAISE EXCEPTION 'a factor that has begun can only be given an end in the future'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER billing_energy_factor_guard BEFORE INSERT OR UPDATE OR DELETE ON billing_energyfactor
  FOR EACH ROW EXECUTE FUNCTION billing_energy_factor_guard();
CREATE TRIGGER billing_energy_factor_never_emptied BEFORE TRUNCATE ON billing_energyfactor
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0016_report_mailings"),
        ("leases", "0028_scratch_full"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="EnergyFactor",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("carbon", "Grid, g CO₂e per kWh"), ("pue", "PUE")], max_length=6
                    ),
                ),
                ("site", models.CharField(blank=True, max_length=60)),
                ("value_milli", models.PositiveIntegerField()),
                ("source", models.CharField(max_length=200)),
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
            ],
            options={
                "ordering": ["kind", "site", "valid"],
                "constraints": [
                    django.contrib.postgres.constraints.ExclusionConstraint(
                        expressions=[
                            (
                                models.Func(
                                    django.db.models.functions.comparison.Cast(
                                        models.Func(models.F("kind"), function="hashtext"),
                                        models.BigIntegerField(),
                                    ),
                                    django.db.models.expressions.CombinedExpression(
                                        django.db.models.functions.comparison.Cast(
                                            models.Func(models.F("kind"), function="hashtext"),
                                            models.BigIntegerField(),
                                        ),
                                        "+",
                                        models.Value(1),
                                    ),
                                    function="int8range",
                                ),
                                "&&",
                            ),
                            (
                                models.Func(
                                    django.db.models.functions.comparison.Cast(
                                        models.Func(models.F("site"), function="hashtext"),
                                        models.BigIntegerField(),
                                    ),
                                    django.db.models.expressions.CombinedExpression(
                                        django.db.models.functions.comparison.Cast(
                                            models.Func(models.F("site"), function="hashtext"),
                                            models.BigIntegerField(),
                                        ),
                                        "+",
                                        models.Value(1),
                                    ),
                                    function="int8range",
                                ),
                                "&&",
                            ),
                            ("valid", "&&"),
                        ],
                        name="one_energy_factor_at_a_time",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("kind", "carbon"), ("value_milli__lte", 5000000)),
                            models.Q(
                                ("kind", "pue"), ("value_milli__gte", 1000), ("value_milli__lte", 10000)
                            ),
                            _connector="OR",
                        ),
                        name="energy_factor_possible",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("source", ""), _negated=True), name="energy_factor_has_a_source"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LeaseEnergy",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("begins", models.DateTimeField()),
                ("site", models.CharField(blank=True, max_length=60)),
                ("measured_s", models.PositiveIntegerField()),
                ("measured_mj", models.PositiveBigIntegerField()),
                ("estimated_s", models.PositiveIntegerField()),
                ("estimated_mj", models.PositiveBigIntegerField()),
                (
                    "lease",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="leases.lease",
                    ),
                ),
            ],
            options={
                "ordering": ["lease", "begins"],
                "constraints": [
                    models.UniqueConstraint(fields=("lease", "begins"), name="energy_once_per_hour"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("measured_s__gte", 1), ("measured_mj", 0), _connector="OR"),
                            models.Q(("estimated_s__gte", 1), ("estimated_mj", 0), _connector="OR"),
                        ),
                        name="energy_has_time",
                    ),
                ],
            },
        ),
        migrations.RunSQL(GUARDED, migrations.RunSQL.noop),
    ]
