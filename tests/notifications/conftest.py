from tests.portal.conftest import world  # noqa: F401
