from django.apps import AppConfig


class PoliciesConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.policies"
    label = "policies"
