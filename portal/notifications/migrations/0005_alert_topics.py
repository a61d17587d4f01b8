import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("notifications", "0004_announcements"),
    ]

    operations = [
        migrations.AlterField(
            model_name="contactpoint",
            name="muted",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(
                    choices=[
                        ("requests", "Requests and approvals"),
                        ("leases", "Leases"),
                        ("jobs", "Jobs"),
                        ("bookings", "Bookings and reservations"),
                        ("fleet", "Nodes and devices"),
                        ("budgets", "Budgets"),
                        ("alerts", "Alerts"),
                        ("escalated", "Alerts that nobody has acknowledged"),
                        ("other", "Everything else"),
                    ],
                    max_length=10,
                ),
                blank=True,
                default=list,
                size=None,
            ),
        ),
    ]
