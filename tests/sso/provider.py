"""An identity provider on loopback: OpenID Connect's code flow, with the faults that tests ask for."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import secrets
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote_plus, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "berth", "s3cret of the client: with a colon"
Claims = dict[str, Any]


class FakeProvider:
    """Who signs in next is ``claims``; ``change`` alters an ID token before it is signed, ``answers`` whole answers."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
        self.signing_key = self.key
        self.claims: Claims = {}
        self.userinfo: Claims = {}
        self.change: Callable[[Claims], None] = lambda claims: None
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.methods = ["client_secret_basic"]
        self.codes: dict[str, Claims] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.serve(self, {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                provider.serve(self, dict(parse_qsl(body.decode())))

            def log_message(self, *_words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self.server.shutdown()
        self.server.server_close()

    def code_for(self, target: str, claims: Claims) -> dict[str, str]:
        """Return what comes back with the browser once somebody has signed in at the address ``target``."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        code = secrets.token_urlsafe(16)
        self.codes[code] = {**asked, "claims": claims}
        return {"code": code, "state": asked["state"]}

    def serve(self, handler: BaseHTTPRequestHandler, body: dict[str, str]) -> None:
        """Answer one request."""
        parts = urlsplit(handler.path)
        status, kind, answer = 200, "application/json", b""
        more: dict[str, str] = {}
        if parts.path in self.answers:
            status, answer = self.answers[parts.path]
        elif parts.path == "/.well-known/openid-configuration":
            answer = json.dumps(self.discovery()).encode()
        elif parts.path == "/keys":
            answer = json.dumps({"keys": [self.key.as_dict(private=False)]}).encode()
        elif parts.path == "/token":
            status, found = self.redeemed(handler, body)
            answer = json.dumps(found).encode()
        elif parts.path == "/userinfo":
            answer = json.dumps(self.userinfo).encode()
        elif parts.path == "/authorize":  # as many do: on to a sign-in page at another address
            status, more = 302, {"Location": f"http://localhost:{self.server.server_port}/page?{parts.query}"}
        elif parts.path == "/page":
            hidden = "".join(
                f'<input type="hidden" name="{name}" value="{html.escape(value)}">'
                for name, value in parse_qsl(parts.query)
            )
            kind = "text/html"
            answer = f"<h1>The lab</h1><form action='/agreed'>{hidden}<button>Log in</button></form>".encode()
        elif parts.path == "/agreed":
            back = self.code_for(f"{self.issuer}/authorize?{parts.query}", self.claims)
            status, more = (
                302,
                {"Location": f"{dict(parse_qsl(parts.query))['redirect_uri']}?{urlencode(back)}"},
            )
        elif parts.path != "/favicon.ico":
            status = 404
        handler.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(answer)), **more}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(answer)

    def discovery(self) -> Claims:
        """Return the discovery document."""
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "token_endpoint_auth_methods_supported": self.methods,
        }

    def redeemed(self, handler: BaseHTTPRequestHandler, body: dict[str, str]) -> tuple[int, Claims]:
        """Return the answer to a code: each counts once, for the client and the verifier that it was made for."""
        known = self.codes.pop(body.get("code", ""), None)
        basic = base64.b64encode(f"{CLIENT}:{quote_plus(SECRET)}".encode()).decode()
        is_us = handler.headers.get("Authorization") == f"Basic {basic}" or (
            body.get("client_id") == CLIENT and body.get("client_secret") == SECRET
        )
        digest = hashlib.sha256(body.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if known is None or not is_us or known["code_challenge"] != challenge:
            return 400, {"error": "invalid_grant"}
        if known["redirect_uri"] != body["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": known["nonce"],
            **known["claims"],
        }
        self.userinfo = {"sub": claims["sub"], **self.userinfo}
        self.change(claims)
        token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.signing_key)
        return 200, {"access_token": "opaque", "token_type": "Bearer", "id_token": token}
