from django.apps import AppConfig


class ApiConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.api"
    label = "api"

    def ready(self) -> None:
        """Make the schema's extensions known: they register when imported."""
        from portal.api import schema  # noqa: F401 (registers itself)
