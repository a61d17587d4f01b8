from django.apps import AppConfig


class TeamsConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.teams"
    label = "teams"
