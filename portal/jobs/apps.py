from django.apps import AppConfig


class JobsConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.jobs"
    label = "jobs"
