"""Addresses of the pages for teams, finance and operators."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
