from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.notifications"
    label = "notifications"
