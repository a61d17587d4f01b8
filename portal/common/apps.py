from django.apps import AppConfig

from portal.common import instants


class CommonConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.common"
    label = "common"

    def ready(self) -> None:
        """Read instants quickly on every connection."""
        instants.install()
