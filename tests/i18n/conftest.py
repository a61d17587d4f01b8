"""The builders of the portal's tests and the browsers of the pages' tests, taken as they are."""

from tests.portal.conftest import world  # noqa: F401
from tests.portal.shared import shared  # noqa: F401
from tests.web.conftest import clean_cache, publish, signed_in  # noqa: F401
