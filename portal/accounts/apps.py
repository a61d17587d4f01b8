from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.accounts"
    label = "accounts"
