from django.apps import AppConfig


class SsoConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.sso"
    label = "sso"
