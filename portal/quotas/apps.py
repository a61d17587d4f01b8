from django.apps import AppConfig


class QuotasConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.quotas"
    label = "quotas"
