from django.apps import AppConfig


class CatalogConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.catalog"
    label = "catalog"
