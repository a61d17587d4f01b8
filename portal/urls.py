"""Every HTTP address of the portal."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("", include("portal.web.urls")),
    path("api/", include("portal.api.urls")),
]
