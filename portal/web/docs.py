"""The documentation, as `make docs` built it."""

from __future__ import annotations

import mimetypes

from csp.decorators import csp_update
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import SuspiciousFileOperation
from django.http import FileResponse, HttpRequest, HttpResponseBase, HttpResponseRedirect
from django.utils._os import safe_join
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.common.errors import NotFound


# The theme brings its own inline scripts and styles; nothing of ours is on these pages, so they may run.
@csp_update({"script-src": ["'unsafe-inline'"], "style-src": ["'unsafe-inline'"]})
@login_not_required
@require_safe
def page(request: HttpRequest, path: str = "") -> HttpResponseBase:
    """Serve a file of the built site, for everybody; a folder by its index."""
    if not (settings.DOCS_DIR / "index.html").is_file():
        raise NotFound(_("The documentation is not built here. “make docs” builds it."))
    try:
        found = settings.DOCS_DIR / safe_join(settings.DOCS_DIR, path)
    except (SuspiciousFileOperation, ValueError) as error:  # out of the folder, or no path at all
        raise NotFound from error
    if found.is_dir():
        if path and not path.endswith("/"):
            return HttpResponseRedirect(f"{request.path}/")
        found = found / "index.html"
    if not found.is_file():
        raise NotFound
    kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
    return FileResponse(found.open("rb"), content_type=kind)
