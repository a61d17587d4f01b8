from django.apps import AppConfig


class BackupConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.backup"
    label = "backup"
