from django.apps import AppConfig


class AgentsConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.agents"
    label = "agents"
