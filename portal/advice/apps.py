from django.apps import AppConfig


class AdviceConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.advice"
    label = "advice"
