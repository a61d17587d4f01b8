from tests.api.conftest import openapi  # noqa: F401
from tests.portal.conftest import world  # noqa: F401
from tests.telemetry.conftest import live  # noqa: F401
