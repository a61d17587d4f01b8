"""Lines hold what their usage is filed under, and so does the digest of their invoice.

A line without labels, as all of months closed before are, has the part in the digest that it had.
"""

from django.db import migrations, models

DIGEST = """
CREATE OR REPLACE FUNCTION billing_invoice_digest(bill billing_invoice, previous bytea) RETURNS bytea
LANGUAGE sql STABLE AS $$
  SELECT sha256(coalesce(previous, ''::bytea) || convert_to((jsonb_build_array(
    bill.period_id, bill.team_id, bill.number, bill.team_name, bill.cost_centre, bill.currency, bill.total_micro,
    extract(epoch FROM bill.issued_at),
    (SELECT jsonb_agg(jsonb_build_array(l.position, l.person, l.flavor, l.device_model, l.micro_per_hour, l.lease_count,
       l.seconds, l.share_milli_seconds, l.amount_micro, l.late_for_id)
       || CASE WHEN l.labels IS NULL THEN '[]'::jsonb ELSE jsonb_build_array(l.labels) END ORDER BY l.position)
     FROM billing_invoiceline l WHERE l.invoice_id = bill.id)) || coalesce((
     SELECT jsonb_build_array(jsonb_agg(jsonb_build_array(l.position, n.number, n.uid, n.amount_micro, n.reason,
       o.number, c.position, n.lease_id, n.proposed_by_id, extract(epoch FROM n.proposed_at), n.decided_by_id,
       extract(epoch FROM n.decided_at)) ORDER BY l.position))
     FROM billing_invoicenote n JOIN billing_invoiceline l ON l.id = n.issued_line_id
     JOIN billing_invoiceline c ON c.id = n.line_id JOIN billing_invoice o ON o.id = c.invoice_id
     WHERE l.invoice_id = bill.id HAVING count(*) > 0), '[]'::jsonb) || coalesce((
     SELECT jsonb_build_array(jsonb_build_object('external', jsonb_agg(jsonb_build_array(l.position, x.source,
       x.external_id, x.description, x.user_id, extract(epoch FROM x.starts_at), extract(epoch FROM x.ends_at),
       x.gpu_milli, x.amount_micro, f.uid, f.digest) ORDER BY l.position)))
     FROM billing_externalusage x JOIN billing_invoiceline l ON l.id = x.billed_on_id
     JOIN billing_financeimport f ON f.id = x.book_id
     WHERE l.invoice_id = bill.id HAVING count(*) > 0), '[]'::jsonb))::text, 'UTF8'))
$$;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0024_late_starts")]
    operations = [
        migrations.AddField(model_name="invoiceline", name="labels", field=models.JSONField(null=True)),
        migrations.RunSQL(DIGEST, migrations.RunSQL.noop),
    ]
