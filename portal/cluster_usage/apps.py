from django.apps import AppConfig


class ClusterUsageConfig(AppConfig):
    """App registration."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "portal.cluster_usage"
    label = "cluster_usage"
