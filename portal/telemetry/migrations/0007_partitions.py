"""Minutes lie in a partition for each day, hours in one for each month, so that old ones are dropped whole.

The plain tables are renamed and their rows moved; indexes are made after that, on all partitions at once. What
belongs to no day or month that there is goes to the default partition until the worker makes one for it.
"""

from django.db import migrations, models

MINUTES = """
DROP INDEX rollup_once_per_device, rollup_once_per_lease, rollup_by_minute;
ALTER TABLE telemetry_minuterollup DROP CONSTRAINT telemetry_minuterollup_pkey;
ALTER SEQUENCE telemetry_minuterollup_id_seq RENAME TO telemetry_minuterollup_plain_id_seq;
ALTER TABLE telemetry_minuterollup RENAME TO telemetry_minuterollup_plain;
CREATE SEQUENCE telemetry_minuterollup_id_seq AS bigint;
CREATE TABLE telemetry_minuterollup (LIKE telemetry_minuterollup_plain INCLUDING DEFAULTS INCLUDING CONSTRAINTS)
  PARTITION BY RANGE (minute);
ALTER TABLE telemetry_minuterollup ALTER COLUMN id SET DEFAULT nextval('telemetry_minuterollup_id_seq');
ALTER SEQUENCE telemetry_minuterollup_id_seq OWNED BY telemetry_minuterollup.id;
CREATE TABLE telemetry_minuterollup_default PARTITION OF telemetry_minuterollup DEFAULT;
DO $$
DECLARE first timestamptz;
BEGIN
  FOR first IN SELECT DISTINCT date_trunc('day', minute, 'UTC') FROM telemetry_minuterollup_plain LOOP
    EXECUTE format('CREATE TABLE telemetry_minuterollup_p%s PARTITION OF telemetry_minuterollup'
                   ' FOR VALUES FROM (%L) TO (%L)',
                   to_char(first AT TIME ZONE 'UTC', 'YYYYMMDD'), first, first + interval '24 hours');
  END LOOP;
END $$;
INSERT INTO telemetry_minuterollup SELECT * FROM telemetry_minuterollup_plain;
SELECT setval('telemetry_minuterollup_id_seq', coalesce(max(id), 0) + 1, false) FROM telemetry_minuterollup_plain;
DROP TABLE telemetry_minuterollup_plain;
ALTER TABLE telemetry_minuterollup ADD CONSTRAINT telemetry_minuterollup_pkey PRIMARY KEY (id, minute);
CREATE INDEX rollup_by_minute ON telemetry_minuterollup USING brin (minute)
  WITH (pages_per_range = 32, autosummarize = on);
CREATE UNIQUE INDEX rollup_once_per_device ON telemetry_minuterollup (device_id, minute) WHERE lease_id IS NULL;
CREATE UNIQUE INDEX rollup_once_per_lease ON telemetry_minuterollup (lease_id, minute) WHERE device_id IS NULL;
"""
HOURS = """
ALTER TABLE telemetry_hourrollup DROP CONSTRAINT hour_once_per_lease;
DROP INDEX hour_by_lease;
ALTER TABLE telemetry_hourrollup DROP CONSTRAINT telemetry_hourrollup_pkey;
ALTER SEQUENCE telemetry_hourrollup_id_seq RENAME TO telemetry_hourrollup_plain_id_seq;
ALTER TABLE telemetry_hourrollup RENAME TO telemetry_hourrollup_plain;
CREATE SEQUENCE telemetry_hourrollup_id_seq AS bigint;
CREATE TABLE telemetry_hourrollup (LIKE telemetry_hourrollup_plain INCLUDING DEFAULTS INCLUDING CONSTRAINTS)
  PARTITION BY RANGE (hour);
ALTER TABLE telemetry_hourrollup ALTER COLUMN id SET DEFAULT nextval('telemetry_hourrollup_id_seq');
ALTER SEQUENCE telemetry_hourrollup_id_seq OWNED BY telemetry_hourrollup.id;
CREATE TABLE telemetry_hourrollup_default PARTITION OF telemetry_hourrollup DEFAULT;
DO $$
DECLARE first timestamptz;
BEGIN
  FOR first IN SELECT DISTINCT date_trunc('month', hour, 'UTC') FROM telemetry_hourrollup_plain LOOP
    EXECUTE format('CREATE TABLE telemetry_hourrollup_p%s PARTITION OF telemetry_hourrollup'
                   ' FOR VALUES FROM (%L) TO (%L)',
                   to_char(first AT TIME ZONE 'UTC', 'YYYYMMDD'), first,
                   (first AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC');
  END LOOP;
END $$;
INSERT INTO telemetry_hourrollup SELECT * FROM telemetry_hourrollup_plain;
SELECT setval('telemetry_hourrollup_id_seq', coalesce(max(id), 0) + 1, false) FROM telemetry_hourrollup_plain;
DROP TABLE telemetry_hourrollup_plain;
ALTER TABLE telemetry_hourrollup ADD CONSTRAINT telemetry_hourrollup_pkey PRIMARY KEY (id, hour);
ALTER TABLE telemetry_hourrollup ADD CONSTRAINT hour_once_per_lease UNIQUE (hour, lease_id);
CREATE INDEX hour_by_lease ON telemetry_hourrollup (lease_id, hour);
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0006_energy_refused")]

    operations = [
        migrations.RunSQL(MINUTES),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(HOURS)],
            state_operations=[
                migrations.RemoveIndex(model_name="hourrollup", name="hour_by_lease"),
                migrations.AddIndex(
                    model_name="hourrollup",
                    index=models.Index(fields=["lease_id", "hour"], name="hour_by_lease"),
                ),
            ],
        ),
    ]
