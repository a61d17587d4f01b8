from django.apps import AppConfig


class IdleConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.idle"
    label = "idle"
