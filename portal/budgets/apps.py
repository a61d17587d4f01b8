from django.apps import AppConfig


class BudgetsConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.budgets"
    label = "budgets"
