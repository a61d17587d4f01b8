from django.apps import AppConfig


class WebConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.web"
    label = "web"
