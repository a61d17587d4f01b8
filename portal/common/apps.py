from django.apps import AppConfig


class CommonConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.common"
    label = "common"
