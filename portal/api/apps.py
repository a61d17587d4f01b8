from django.apps import AppConfig


class ApiConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.api"
    label = "api"
