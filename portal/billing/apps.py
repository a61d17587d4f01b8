from django.apps import AppConfig


class BillingConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.billing"
    label = "billing"
