from django.apps import AppConfig


class SecondFactorConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.second_factor"
    label = "second_factor"
