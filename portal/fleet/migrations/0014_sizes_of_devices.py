from __future__ import annotations

from django.db import migrations, models

# Which names of a model are one slice, the first one told giving the size: equal but for the memory in the name,
# and less than a tenth apart in memory and share.
SIZES = """
DO $$
DECLARE told fleet_profile%ROWTYPE;
BEGIN
    FOR told IN SELECT * FROM fleet_profile ORDER BY id LOOP
        UPDATE fleet_profile SET size = coalesce((
            SELECT known.name FROM fleet_profile known
            WHERE known.device_model_id = told.device_model_id AND known.id < told.id AND known.size = known.name
            AND regexp_replace(known.name, '\\.[0-9]+gb', '') = regexp_replace(told.name, '\\.[0-9]+gb', '')
            AND known.slices = told.slices
            AND abs(known.memory_mib - told.memory_mib) * 10 <= greatest(known.memory_mib, told.memory_mib)
            AND abs(known.share_milli - told.share_milli) * 10 <= greatest(known.share_milli, told.share_milli)
            ORDER BY known.id LIMIT 1), told.name)
        WHERE id = told.id;
    END LOOP;
END $$;
"""
# Until its next hello a device has the sizes that its model was known by, one name for each.
TOLD_SO_FAR = """
UPDATE fleet_device device SET profiles = known.rows FROM (
    SELECT device_model_id, jsonb_agg(jsonb_build_object('name', name, 'size', size, 'slices', slices,
        'starts', to_jsonb(starts), 'memory_mib', memory_mib, 'sm_count', sm_count,
        'max_instances', max_instances, 'share_milli', share_milli) ORDER BY id) AS rows
    FROM fleet_profile WHERE size = name GROUP BY device_model_id) known
WHERE known.device_model_id = device.model_id;
"""


class Migration(migrations.Migration):
    dependencies = [("fleet", "0013_accepted_devices")]

    operations = [
        migrations.AddField(
            "profile", "size", models.CharField(default="", max_length=30), preserve_default=False
        ),
        migrations.AddField("device", "profiles", models.JSONField(blank=True, default=list)),
        migrations.RunSQL(SIZES, migrations.RunSQL.noop),
        migrations.RunSQL(TOLD_SO_FAR, migrations.RunSQL.noop),
    ]
