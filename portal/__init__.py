"""The portal: Django apps that own teams, fleet, leases and money."""

from portal.celery import app as celery_app

__all__ = ["celery_app"]
