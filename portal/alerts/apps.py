from django.apps import AppConfig


class AlertsConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.alerts"
    label = "alerts"
