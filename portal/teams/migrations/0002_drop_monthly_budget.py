from django.db import migrations


class Migration(migrations.Migration):
    """Budgets have rows of their own now, which hold what this was."""

    dependencies = [("teams", "0001_initial"), ("budgets", "0002_guards")]

    operations = [migrations.RemoveField(model_name="team", name="monthly_budget_micro")]
