"""Addresses of the pages for everybody who asks for GPU time, and of signing in."""

from __future__ import annotations

from django.urls import path

from portal.web import auth, design

urlpatterns = [
    path("sign-in/", auth.sign_in, name="sign_in"),
    path("sign-out/", auth.sign_out, name="sign_out"),
    path("design/", design.page, name="design"),
]
