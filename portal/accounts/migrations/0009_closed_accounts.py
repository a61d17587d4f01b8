from django.db import migrations, models


class Migration(migrations.Migration):
    """Since when an account is closed."""

    dependencies = [
        ("accounts", "0008_impersonation"),
    ]

    operations = [
        migrations.AddField(
            model_name="user",
            name="closed_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddConstraint(
            model_name="user",
            constraint=models.CheckConstraint(
                condition=models.Q(("closed_at", None), ("is_active", False), _connector="OR"),
                name="account_that_is_closed_is_not_active",
            ),
        ),
    ]
