from __future__ import annotations

from tests.portal.conftest import world  # noqa: F401
