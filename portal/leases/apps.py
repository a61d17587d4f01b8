from django.apps import AppConfig


class LeasesConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.leases"
    label = "leases"
