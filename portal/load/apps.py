from django.apps import AppConfig


class LoadConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.load"
    label = "load"
