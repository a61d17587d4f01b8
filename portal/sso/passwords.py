"""Sign-in by a password that a directory knows."""

from __future__ import annotations

import logging
from datetime import datetime

from django.utils.translation import gettext as _

from portal.common.errors import Unavailable
from portal.sso.openid import ProviderFault
from portal.sso.providers import active_directories, found_in
from portal.sso.signing_in import AdmittedPerson, admit

log = logging.getLogger(__name__)


def by_directory(name: str, password: str, *, now: datetime) -> AdmittedPerson | None:
    """Return the account of whoever has this name and password in a directory, None where none knows them.

    They are asked in turn, by name, outside a transaction. Raises Forbidden for a closed account and for somebody
    whom no group lets in, and Unavailable where none that answered knows them and another one did not answer.
    """
    silent = ""
    for provider in active_directories():
        try:
            person = found_in(provider, name, password)
        except ProviderFault as fault:
            log.warning("directory %s: %s", provider.slug, fault)
            silent = provider.name
            continue
        if person is not None:
            return admit(provider, person, now=now)
    if silent:
        raise Unavailable(
            _("%(name)s does not answer now. Try again later, or tell an operator.") % {"name": silent}
        )
    return None
