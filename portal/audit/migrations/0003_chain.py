"""Number and chain the audit list: each link's digest covers the entry and the digest before it.

The SQL is frozen here. docs/adr/0011-audit-chain.md says why links lie beside the entries.
"""

from django.db import migrations, models

FUNCTIONS = """
CREATE FUNCTION audit_text(seq bigint, linked_at timestamptz, e audit_auditentry) RETURNS text
LANGUAGE sql STABLE AS $$
  SELECT jsonb_build_array(
    seq, to_char(linked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'),
    e.id, e.actor_id, e.action, e.target, e.team_id, e.detail,
    to_char(e.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'))::text
$$;

-- Link up to "most" waiting entries and return how many. One at a time: business transactions never wait for it.
CREATE FUNCTION audit_chain(most integer, now timestamptz) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  head audit_audithead;
  entry audit_auditentry;
  linked integer := 0;
  settled bigint;
BEGIN
  PERFORM pg_advisory_xact_lock(1651667060, 1);
  SELECT * INTO head FROM audit_audithead WHERE id = 1;
  IF NOT FOUND THEN
    IF EXISTS (SELECT 1 FROM audit_auditlink) THEN
      RAISE EXCEPTION 'the head of the audit chain is gone' USING ERRCODE = 'check_violation';
    END IF;
    INSERT INTO audit_audithead (id, seq, digest, floor) VALUES (1, 0, sha256('berth audit 1'), 0)
      RETURNING * INTO head;
  END IF;
  FOR entry IN
    SELECT e.* FROM audit_auditentry e
    WHERE e.id > head.floor AND NOT EXISTS (SELECT 1 FROM audit_auditlink l WHERE l.entry_id = e.id)
    ORDER BY e.id LIMIT most
  LOOP
    head.seq := head.seq + 1;
    head.digest := sha256(head.digest || convert_to(audit_text(head.seq, now, entry), 'UTF8'));
    INSERT INTO audit_auditlink (seq, entry_id, linked_at, digest)
      VALUES (head.seq, entry.id, now, head.digest);
    linked := linked + 1;
  END LOOP;
  -- No transaction lives this long, so nothing with a smaller id can still be committed.
  SELECT max(entry_id) INTO settled FROM audit_auditlink
    WHERE entry_id > head.floor AND linked_at <= now - interval '15 minutes';
  IF linked > 0 OR settled IS NOT NULL THEN
    UPDATE audit_audithead SET seq = head.seq, digest = head.digest, floor = greatest(floor, settled) WHERE id = 1;
  END IF;
  RETURN linked;
END $$;
"""

GUARDS = """
CREATE FUNCTION audit_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER audit_auditentry_no_truncate BEFORE TRUNCATE ON audit_auditentry
  FOR EACH STATEMENT EXECUTE FUNCTION audit_kept();
CREATE TRIGGER audit_auditlink_no_truncate BEFORE TRUNCATE ON audit_auditlink
  FOR EACH STATEMENT EXECUTE FUNCTION audit_kept();
CREATE TRIGGER audit_audithead_no_truncate BEFORE TRUNCATE ON audit_audithead
  FOR EACH STATEMENT EXECUTE FUNCTION audit_kept();
CREATE TRIGGER audit_auditlink_append_only BEFORE UPDATE OR DELETE ON audit_auditlink
  FOR EACH ROW EXECUTE FUNCTION audit_kept();
CREATE TRIGGER audit_audithead_stays BEFORE DELETE ON audit_audithead
  FOR EACH ROW EXECUTE FUNCTION audit_kept();

CREATE FUNCTION audit_head_goes_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.id <> OLD.id OR NEW.seq < OLD.seq OR NEW.floor < OLD.floor
     OR (NEW.seq = OLD.seq AND NEW.digest <> OLD.digest) THEN
    RAISE EXCEPTION 'the head of the audit chain cannot go back' USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER audit_audithead_goes_on BEFORE UPDATE ON audit_audithead
  FOR EACH ROW EXECUTE FUNCTION audit_head_goes_on();
"""

# Entries written before today are linked now, in the order of their ids.
LINK_THE_OLD = """
SET LOCAL statement_timeout = 0;
DO $$ BEGIN WHILE audit_chain(10000, now()) > 0 LOOP END LOOP; END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0002_guards")]

    operations = [
        migrations.CreateModel(
            name="AuditHead",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("seq", models.BigIntegerField()),
                ("digest", models.BinaryField(max_length=32)),
                ("floor", models.BigIntegerField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="one_head_of_the_audit_chain")
                ]
            },
        ),
        migrations.CreateModel(
            name="AuditLink",
            fields=[
                ("seq", models.BigIntegerField(primary_key=True, serialize=False)),
                ("entry_id", models.BigIntegerField(unique=True)),
                ("linked_at", models.DateTimeField()),
                ("digest", models.BinaryField(max_length=32)),
            ],
        ),
        migrations.RunSQL(FUNCTIONS, migrations.RunSQL.noop),
        migrations.RunSQL(GUARDS, migrations.RunSQL.noop),
        migrations.RunSQL(LINK_THE_OLD, migrations.RunSQL.noop),
    ]
