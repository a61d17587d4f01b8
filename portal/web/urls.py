"""Every page. Researchers' and administrators' pages are listed apart."""

from __future__ import annotations

from portal.web import routes_admin, routes_researcher

app_name = "web"
urlpatterns = [*routes_researcher.urlpatterns, *routes_admin.urlpatterns]
