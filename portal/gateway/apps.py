from django.apps import AppConfig


class GatewayConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.gateway"
    label = "gateway"
