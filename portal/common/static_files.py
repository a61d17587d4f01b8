"""Static files under an address that changes with them: a browser keeps each for a year and never asks again."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.views.decorators.http import require_safe

from portal.common.errors import NotFound

# Packages whose own static files pages use.
PACKAGES = ("drf-spectacular-sidecar",)


@cache
def digest(folder: Path) -> str:
    """Return twelve hex digits that change with any file of ``folder`` and with the packages that bring files."""
    found = hashlib.sha256(" ".join(version(name) for name in PACKAGES).encode())
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            found.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:12]


@login_not_required
@require_safe
def moved(request: HttpRequest, path: str) -> HttpResponse:
    """Lead a page that was open before an upgrade, and a bare address, to the file as it is now."""
    if request.path.startswith(settings.STATIC_URL):
        raise NotFound
    return HttpResponseRedirect(settings.STATIC_URL + quote(re.sub(r"^[0-9a-f]{12}/", "", path)))


class CompressPages(GZipMiddleware):
    """Compress pages and static files.

    Left as they are: parts of a file, because gzip would change their offsets, and the API, because an ETag must come
    back as it was sent, and gzip weakens it.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Compress the answer where that changes nothing else."""
        if response.status_code == 206 or request.path.startswith("/api/"):
            return response
        return super().process_response(request, response)
