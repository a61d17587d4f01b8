from django.apps import AppConfig


class DemoConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.demo"
    label = "demo"
