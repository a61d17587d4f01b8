"""Which digest a tag means right now, asked of its registry (OCI Distribution Specification 1.1, HEAD of a manifest).

What people name as a registry is not believed to be one: it is asked by HTTPS and at public addresses alone, but for
those that the operator has named (BERTH_IMAGE_REGISTRIES). No password is sent; what is not for everybody stays a tag.
"""

from __future__ import annotations

import hashlib
import json
import re
from concurrent.futures import Executor
from typing import Final
from urllib.parse import urlencode, urlsplit

from django.conf import settings

from nodeagent.protocol.images import DIGEST, ImageReference
from portal.notifications.outgoing import HttpAnswer, Undeliverable, exchange

# An index first: it means the same image on nodes of every kind of processor.
ACCEPT: Final = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "docker.distribution.manifest.list.v2",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.v2",
    )
)
MOST_MANIFEST: Final = 4 * 2**20
MOST_TOKEN: Final = 16_384
# The one registry whose name is not that of its server.
HUB: Final = "docker.io"
HUB_SERVER: Final = "registry-1.docker.io"
_CHALLENGE: Final = re.compile(r'([a-z]+)="([^"]*)"')


class UnresolvedError(Exception):
    """Nobody said which digest a tag means; the sentence says why, for the log."""


async def digest_of(image: ImageReference, threads: Executor) -> str:
    """Return the digest that a tag of a registry means now; raises UnresolvedError. Names are looked up in ``threads``.

    Takes as long as four answers at most, each within some seconds.
    """
    host, _, path = image.name.partition("/")
    if host == HUB:
        host, path = HUB_SERVER, path if "/" in path else f"library/{path}"
    url = f"{_base(host)}/v2/{path}/manifests/{image.tag or 'latest'}"
    named = host in _named()
    try:
        answer = await _ask("HEAD", url, threads, may_be_private=named)
        token = ""
        if answer.status == 401:
            challenge = answer.headers.get("www-authenticate", "")
            token = await _token(challenge, path, threads, is_named=named)
            answer = await _ask("HEAD", url, threads, token, may_be_private=named)
        digest = answer.headers.get("docker-content-digest", "")
        if answer.status == 200 and not digest:
            answer = await _ask("GET", url, threads, token, most=MOST_MANIFEST + 1, may_be_private=named)
            if len(answer.body) > MOST_MANIFEST:
                raise UnresolvedError("its manifest is too long")
            digest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
    except Undeliverable as no:
        raise UnresolvedError(str(no)) from no
    if answer.status != 200:
        raise UnresolvedError(f"the registry answered {answer.status}")
    if not DIGEST.fullmatch(digest):
        raise UnresolvedError("the registry named no digest of SHA-256")
    return digest


async def _ask(
    method: str,
    url: str,
    threads: Executor,
    token: str = "",
    *,
    most: int = MOST_TOKEN,
    may_be_private: bool,
) -> HttpAnswer:
    headers = {"accept": ACCEPT, "accept-encoding": "identity", "user-agent": "berth"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    return await exchange(method, url, threads, headers=headers, most=most, may_be_private=may_be_private)


async def _token(challenge: str, path: str, threads: Executor, *, is_named: bool) -> str:
    """Return what a registry hands to anybody who wants to read; raises UnresolvedError.

    Only a registry that the operator has named sends us to another one that is: what anybody else says must not have
    us fetch a token within the operator's network and hand it out.
    """
    kind, _, rest = challenge.partition(" ")
    asked = dict(_CHALLENGE.findall(rest))
    realm = asked.get("realm", "")
    parts = urlsplit(realm)
    is_secure = parts.scheme == "https" or _base(parts.netloc) == f"{parts.scheme}://{parts.netloc}"
    if kind.lower() != "bearer" or not (parts.netloc and is_secure):
        raise UnresolvedError("the registry wants a password")
    query = {"scope": f"repository:{path}:pull"}
    if "service" in asked:
        query["service"] = asked["service"]
    url = f"{realm}{'&' if parts.query else '?'}{urlencode(query)}"
    answer = await _ask("GET", url, threads, may_be_private=is_named and parts.netloc in _named())
    try:
        found = json.loads(answer.body)
        token = found.get("token") or found.get("access_token") or ""
    except (ValueError, AttributeError):
        token = ""
    if not (isinstance(token, str) and token.isascii() and token.isprintable()) or " " in token or not token:
        raise UnresolvedError(f"no token of the registry ({answer.status})")
    return token


def _named() -> dict[str, str]:
    """Return the registries that the operator has named, host and port as in images, each with its scheme."""
    found = {}
    for one in settings.IMAGE_REGISTRIES:
        scheme, is_url, rest = one.partition("://")
        found[rest if is_url else one] = scheme if is_url else "https"
    return found


def _base(host: str) -> str:
    return f"{_named().get(host, 'https')}://{host}"
