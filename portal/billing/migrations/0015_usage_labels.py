"""Usage keeps what it is filed under: it may be filed anew while its month is open, and never changes otherwise."""

import django.db.models.deletion
from django.db import migrations, models

GUARDED = """
CREATE OR REPLACE FUNCTION billing_usage_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  was billing_usagerecord%ROWTYPE;
BEGIN
  PERFORM 1 FROM billing_billingperiod WHERE id = OLD.period_id AND state = 'open' FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'period % is closed or closing: its usage never changes', OLD.period_id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  was := OLD;
  was.label_id := NEW.label_id;
  IF was IS DISTINCT FROM NEW OR OLD.label_id IS NOT DISTINCT FROM NEW.label_id THEN
    RAISE EXCEPTION 'usage % never changes, it can only be filed anew', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;

-- Usage of closed months names its label: what that says never changes.
CREATE FUNCTION billing_label_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'label % is what usage is filed under and never changes', OLD.id
    USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
END $$;
CREATE TRIGGER billing_label_frozen BEFORE UPDATE OR DELETE ON billing_usagelabel
  FOR EACH ROW EXECUTE FUNCTION billing_label_frozen();
CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON billing_usagelabel
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0014_discounts"),
        ("catalog", "0006_discounts"),
        ("leases", "0026_request_labels"),
        ("teams", "0006_labels"),
    ]

    operations = [
        migrations.CreateModel(
            name="UsageLabel",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("cost_centre", models.CharField(blank=True, max_length=40)),
                ("project", models.CharField(blank=True, max_length=40)),
                ("tags", models.JSONField(blank=True, default=dict)),
            ],
            options={
                "ordering": ["project", "cost_centre", "id"],
            },
        ),
        migrations.AddField(
            model_name="usagerecord",
            name="label",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="billing.usagelabel",
            ),
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(
                condition=models.Q(("label", None), _negated=True),
                fields=["label", "period"],
                name="usage_labelled",
            ),
        ),
        migrations.RunSQL(GUARDED, migrations.RunSQL.noop),
    ]
