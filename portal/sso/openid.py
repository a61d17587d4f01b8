"""OpenID Connect as far as signing in needs it: the code flow with PKCE, state and nonce, and a verified ID token.

Whatever a provider answers is hostile until checked: it is small, arrives in time, comes from where it should without
redirects, and its ID token is signed by a key of the provider's, for us, for this try, and not over.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from portal.common.certificates import trusted

WITHIN_S: Final = 5.0
MOST_ANSWER: Final = 1024 * 1024
# Clocks of a provider and of ours may differ by so much.
LEEWAY_S: Final = 60
LONGEST_SUBJECT: Final = 255
SCOPES: Final = ("openid", "profile", "email")
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
KEY_KINDS: Final = ("RSA", "EC", "OKP")
LOCAL: Final = ("localhost", "127.0.0.1", "::1")


class ProviderFault(Exception):
    """A provider could not be reached, or its answer does not hold; the text is for logs and operators."""


@dataclass(frozen=True, slots=True)
class ProviderClient:
    """What we are at a provider."""

    issuer: str
    client_id: str
    secret: str
    callback: str


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a provider answers, as its discovery document says; ``userinfo`` is "" where it has none."""

    authorization: str
    token: str
    keys: str
    userinfo: str
    is_basic: bool
    scope: str


@dataclass(frozen=True, slots=True)
class Flow:
    """One try to sign in: what must come back unchanged (``state``, ``nonce``) and what proves that it is us."""

    state: str
    nonce: str
    verifier: str


def discover(issuer: str) -> Endpoints:
    """Return where a provider answers; raises ProviderFault."""
    document = _json("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
    if str(document.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
        raise ProviderFault(f"it calls itself {str(document.get('issuer'))[:200]!r}")
    known = {}
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
        address = document.get(name)
        known[name] = address if isinstance(address, str) and is_safe(address) else ""
        if not known[name] and name != "userinfo_endpoint":
            raise ProviderFault(f"its {name} is missing or no https address")
    methods = document.get("token_endpoint_auth_methods_supported")
    scopes = document.get("scopes_supported")
    return Endpoints(
        authorization=known["authorization_endpoint"],
        token=known["token_endpoint"],
        keys=known["jwks_uri"],
        userinfo=known["userinfo_endpoint"],
        # What a provider that says nothing takes (OpenID Connect Discovery 1.0, section 3).
        is_basic=not isinstance(methods, list) or "client_secret_post" not in methods,
        # Some, Okta among them, tell groups only to whoever asks for them.
        scope=" ".join((*SCOPES, "groups") if isinstance(scopes, list) and "groups" in scopes else SCOPES),
    )


def authorization_url(client: ProviderClient, endpoints: Endpoints, flow: Flow) -> str:
    """Return where to send the browser."""
    digest = hashlib.sha256(flow.verifier.encode()).digest()
    asked = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": client.callback,
        "scope": endpoints.scope,
        "state": flow.state,
        "nonce": flow.nonce,
        "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
    }
    join = "&" if urlsplit(endpoints.authorization).query else "?"
    return endpoints.authorization + join + urlencode(asked)


def redeem(client: ProviderClient, endpoints: Endpoints, flow: Flow, code: str) -> dict[str, Any]:
    """Return the claims about whoever signed in, for the code that the browser brought; raises ProviderFault.

    Those of the ID token come before those of the userinfo endpoint, which must be about the same subject.
    """
    body = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": client.callback,
        "code_verifier": flow.verifier,
    }
    # Each part is form-encoded first (RFC 6749, 2.3.1), or a colon or percent sign would be misread.
    auth = (quote_plus(client.client_id), quote_plus(client.secret)) if endpoints.is_basic else None
    if auth is None:
        body |= {"client_id": client.client_id, "client_secret": client.secret}
    answer = _json("POST", endpoints.token, data=body, auth=auth)
    claims = _verified(answer.get("id_token"), client, endpoints, flow)
    access = answer.get("access_token")
    if not endpoints.userinfo or not isinstance(access, str) or not access.isascii():
        return claims
    more = _json("GET", endpoints.userinfo, headers={"Authorization": f"Bearer {access}"})
    if more.get("sub") != claims["sub"]:
        raise ProviderFault("its userinfo is about somebody else")
    return {**more, **claims}


def is_safe(url: str) -> bool:
    """Return whether an address may be trusted with a secret: https, or this very machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in LOCAL))


def _verified(token: Any, client: ProviderClient, endpoints: Endpoints, flow: Flow) -> dict[str, Any]:
    if not isinstance(token, str):
        raise ProviderFault("it sent no ID token")
    given = _json("GET", endpoints.keys).get("keys")
    usable = [
        key
        for key in (given if isinstance(given, list) else [])
        if isinstance(key, dict) and key.get("kty") in KEY_KINDS and key.get("use", "sig") == "sig"
    ]
    rules = jwt.JWTClaimsRegistry(
        leeway=LEEWAY_S,
        iss={"essential": True, "values": [client.issuer, client.issuer.rstrip("/"), client.issuer + "/"]},
        aud={"essential": True, "value": client.client_id},
        exp={"essential": True},
        sub={"essential": True},
        nonce={"essential": True, "value": flow.nonce},
    )
    try:
        claims = jwt.decode(token, KeySet.import_key_set({"keys": usable}), algorithms=ALGORITHMS).claims
        rules.validate(claims)
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProviderFault(f"its ID token does not hold: {type(error).__name__}") from error
    if not (0 < len(claims["sub"]) <= LONGEST_SUBJECT and claims["sub"].isprintable()):
        raise ProviderFault("its subject cannot be kept")
    # One made for several parties names the one that it was made for (OpenID Connect Core 1.0, 3.1.3.7).
    if claims.get("azp", client.client_id) != client.client_id:
        raise ProviderFault("its ID token was made for another client")
    return claims


def _json(method: str, url: str, **more: Any) -> Mapping[str, Any]:
    """Return the JSON object at an address; raises ProviderFault. No redirect is followed, nothing long is read."""
    host = urlsplit(url).hostname
    until = time.monotonic() + WITHIN_S
    body = b""
    try:
        with (
            httpx.Client(verify=trusted(), timeout=WITHIN_S, follow_redirects=False) as web,
            web.stream(
                method, url, headers={"Accept": "application/json", **more.pop("headers", {})}, **more
            ) as answer,
        ):
            for piece in answer.iter_bytes():  # as it comes: pieces of a size would be waited for
                body += piece
                if len(body) > MOST_ANSWER or time.monotonic() > until:
                    raise ProviderFault(f"{host} sent too much, or too slowly")
            if answer.status_code != 200:
                raise ProviderFault(f"{host} answered {answer.status_code}")
        found = json.loads(body)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise ProviderFault(f"{host}: {type(error).__name__}") from error
    if not isinstance(found, dict):
        raise ProviderFault(f"{host} sent no JSON object")
    return found
