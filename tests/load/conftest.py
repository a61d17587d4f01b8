from __future__ import annotations

from tests.portal.conftest import world  # noqa: F401
from tests.web.conftest import signed_in  # noqa: F401
