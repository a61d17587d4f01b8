"""The authorities whose certificates are trusted where this process calls others."""

from __future__ import annotations

import functools
import ssl

import httpx


@functools.cache
def trusted(*, trust_env: bool = True) -> ssl.SSLContext:
    """Return the context for ``httpx``'s ``verify``, read once per process; connections and threads share it.

    Reading some 140 authorities takes 22 ms of processor, which every client of its own would pay again. With
    ``trust_env``, SSL_CERT_FILE and SSL_CERT_DIR name others; what they say at the first call holds until a restart.
    """
    return httpx.create_ssl_context(trust_env=trust_env)
