from django.apps import AppConfig


class AuditConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.audit"
    label = "audit"
