from django.apps import AppConfig


class LabConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.lab"
    label = "lab"
