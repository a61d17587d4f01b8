"""Every HTTP address of the portal."""

from __future__ import annotations

import secrets

from django.contrib.auth.decorators import login_not_required
from django.urls import include, path
from django.utils.translation import get_language
from django.views.decorators.http import condition
from django.views.i18n import JavaScriptCatalog

from portal.api import metrics, operations
from portal.common import static_files
from portal.web import docs
from portal.web.own_paths import choose_language

handler500 = "portal.common.middleware.server_error"
_STARTED = secrets.token_hex(4)
_catalog = condition(etag_func=lambda _request: f'"{get_language()}-{_STARTED}"')(JavaScriptCatalog.as_view())

urlpatterns = [
    path("", include("portal.web.urls")),
    path("api/", include("portal.api.urls")),
    path("healthz", operations.healthz, name="healthz"),
    path("readyz", operations.readyz, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("metrics/devices", metrics.device_metrics, name="device_metrics"),
    path("docs/errors", operations.error_codes, name="error_codes"),
    path("docs/", docs.page, name="docs"),
    path("docs/<path:path>", docs.page, name="docs_file"),
    path("static/<path:path>", static_files.moved, name="static_moved"),
    path("language/", login_not_required(choose_language), name="set_language"),
    path("jsi18n/", login_not_required(_catalog), name="javascript-catalog"),
]
