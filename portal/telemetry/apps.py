from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.telemetry"
    label = "telemetry"
