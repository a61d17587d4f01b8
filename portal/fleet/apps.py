from django.apps import AppConfig


class FleetConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.fleet"
    label = "fleet"
