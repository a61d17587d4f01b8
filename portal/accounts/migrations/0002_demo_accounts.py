from django.db import migrations, models

# Accounts that the demo made before they were marked: its names together with its addresses.
MARK = """
UPDATE accounts_user SET is_demo = true
WHERE username IN ('bob', 'alice', 'charlie', 'approver', 'finance', 'operator')
  AND email = username || '@northwind.example'
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial")]

    operations = [
        migrations.AddField("user", "is_demo", models.BooleanField(default=False)),
        migrations.RunSQL(MARK, migrations.RunSQL.noop),
    ]
