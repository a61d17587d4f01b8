"""The Celery application: tasks live in ``scheduler.tasks`` and carry ids, never work."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_process_init

from portal.tracing import start_tracing

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

app = Celery("berth")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.include = ["scheduler.tasks"]
# By name: whoever only sends tasks need not load what a worker is made of.
app.Task.Request = "portal.worker:Request"


@setup_logging.connect
def _keep_our_logging(**_kwargs: Any) -> None:
    """Leave Django's logging configuration in place."""


@worker_process_init.connect
def _fresh_connections(**_kwargs: Any) -> None:
    """A forked child must not share its parent's database pool; it sends its own traces."""
    start_tracing("berth-worker")
    from django.db import connections

    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
