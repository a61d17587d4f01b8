"""Calls to the API: decoded answers, refusals as exceptions, repeats that take effect once."""

from __future__ import annotations

import contextlib
import platform
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx

from portal.cli import zones
from portal.cli.config import Config

TIMEOUT_S = 30.0
TRIES = 3
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
SLOWER_S = 5  # what “slow_down” asks for
LONGEST_NAME = 60
sleep = time.sleep  # a test puts its own here
transport: httpx.BaseTransport | None = None  # a test puts the application itself here


class RefusedError(Exception):
    """The portal said no: the problem it gave."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(str(problem.get("detail", "")))
        self.problem = problem


class UnreachableError(Exception):
    """No answer from the portal, or none that is its own."""


class ApiClient:
    """One connection to one portal."""

    def __init__(self, config: Config) -> None:
        self.config = config
        headers = {"User-Agent": "berth-cli", "Accept": "application/json"}
        if zones.name():
            headers["Time-Zone"] = zones.name()
        if config.token:
            headers["Authorization"] = f"Bearer {config.token}"
        self.http = httpx.Client(headers=headers, timeout=TIMEOUT_S, transport=transport)

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the decoded answer, or raise RefusedError or UnreachableError."""
        given = {name: value for name, value in parameters.items() if value not in (None, "")}
        # An address that has its own parameters would lose them even to an empty mapping.
        return _decoded(self._send("GET", path, params=given or None))

    def text(self, path: str) -> str:
        """Return an answer that is not JSON."""
        response = self._send("GET", path)
        _decoded(response, expect_json=False)
        return response.text

    @contextlib.contextmanager
    def download(self, path: str) -> Iterator[Iterator[bytes]]:
        """Yield the bytes of a file piece by piece; raises RefusedError or UnreachableError."""
        try:
            with self.http.stream("GET", f"{self.config.url}/api/v1/{path}") as response:
                if not response.is_success:
                    response.read()
                    _decoded(response)
                yield response.iter_bytes()
        except httpx.HTTPError as error:
            raise UnreachableError(str(error) or type(error).__name__) from error

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the decoded answer. A call that got no answer is repeated with the same key: it acts once."""
        key = {"Idempotency-Key": f"cli-{secrets.token_hex(12)}"}
        for _attempt in range(TRIES - 1):
            with contextlib.suppress(UnreachableError):
                return _decoded(self._send("POST", path, json=body or {}, headers=key))
        return _decoded(self._send("POST", path, json=body or {}, headers=key))

    def put(self, path: str, body: dict[str, Any], *, match: str = "") -> Any:
        """Return the decoded answer; ``match`` is the ETag of what is edited."""
        return _decoded(self._send("PUT", path, json=body, headers={"If-Match": match} if match else {}))

    def delete(self, path: str) -> None:
        """Remove what is at an address."""
        _decoded(self._send("DELETE", path))

    def every(self, path: str, *, most: int = 1000, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Yield the rows of a list, page after page, up to ``most``.

        Of the address of the next page only the parameters are taken. A portal behind a proxy may know itself by
        another name, and a token goes nowhere but to where it was made for.
        """
        page = self.get(path, **parameters)
        found = 0
        while True:
            for row in page["results"]:
                yield row
                found += 1
                if found >= most:
                    return
            if not page["next"]:
                return
            page = self.get(f"{path}?{urlsplit(page['next']).query}")

    def _proof(self) -> str:
        """Return what a form must show; the cookie has another name behind TLS."""
        cookies = self.http.cookies
        return cookies.get("__Host-csrftoken") or cookies.get("csrftoken") or ""

    def sign_in(self, name: str, password: str, *, token_name: str, days: int) -> str:
        """Return the secret of a new token, made through a browser session that ends at once."""
        at, page = self.config.url, f"{self.config.url}/sign-in/"
        try:
            self.http.get(page)
            proof = self._proof()
            form = {"username": name, "password": password, "csrfmiddlewaretoken": proof}
            answer = self.http.post(page, data=form, headers={"Referer": page})
            if answer.status_code != 302:
                raise RefusedError(_no_sign_in(answer.status_code))
            if answer.headers.get("Location", "").startswith("/second-step/"):
                raise RefusedError(_NEEDS_CODE)
            headers = {"X-CSRFToken": self._proof(), "Referer": page}
            body = {"name": token_name, "scopes": ["admin"], "days": days}
            made = _decoded(self.http.post(f"{at}/api/v1/tokens/", json=body, headers=headers))
            self.http.post(f"{at}/sign-out/", headers={**headers, "X-CSRFToken": self._proof()})
        except httpx.HTTPError as error:
            raise UnreachableError(str(error)) from error
        return str(made["secret"])

    def sign_in_by_code(self, *, days: int, tell: Callable[[str], None]) -> str:
        """Tell of a code, wait until it is approved in a browser (RFC 8628), and return the secret of the new token."""
        name = f"berth on {platform.node() or 'a terminal'}"[:LONGEST_NAME]
        begun = _granted(self._oauth("device/", {"client_id": "berth-cli", "name": name, "days": str(days)}))
        tell(f"Open {begun['verification_uri_complete']}")
        tell(
            f"and approve the code {begun['user_code']}. It is good for {begun['expires_in'] // 60} minutes."
        )
        interval, code = int(begun["interval"]), str(begun["device_code"])
        while True:
            sleep(interval)
            form = {"grant_type": DEVICE_GRANT, "device_code": code, "client_id": "berth-cli"}
            found = self._oauth("token/", form)
            if found.get("error") == "slow_down":
                interval += SLOWER_S
            elif found.get("error") != "authorization_pending":
                return str(_granted(found)["access_token"])

    def _oauth(self, path: str, form: dict[str, str]) -> dict[str, Any]:
        """Return the answer of OAuth's calls, an error among them: a dict with ``error``. Raises UnreachableError."""
        try:
            answer = self.http.post(f"{self.config.url}/oauth/{path}", data=form)
            found = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise UnreachableError(str(error) or type(error).__name__) from error
        if not isinstance(found, dict):
            raise UnreachableError("this does not look like a Berth portal")
        return found

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return self.http.request(method, f"{self.config.url}/api/v1/{path}", **more)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise UnreachableError(str(error) or type(error).__name__) from error


def _decoded(response: httpx.Response, *, expect_json: bool = True) -> Any:
    if response.is_success and (not expect_json or response.status_code == 204):
        return None
    try:
        body = response.json()
    except ValueError as error:
        kind = f"status {response.status_code} without JSON"
        raise UnreachableError(f"this does not look like a Berth portal ({kind})") from error
    if response.is_success:
        return body
    raise RefusedError(
        body if isinstance(body, dict) else {"detail": "The portal refused without saying why."}
    )


def _granted(found: dict[str, Any]) -> dict[str, Any]:
    if "error" in found:
        said = str(found.get("error_description") or found["error"])
        raise RefusedError({"detail": said, "next": "Run “berth login” again."})
    return found


_NEEDS_CODE = {
    "detail": "This account needs a code beside the password.",
    "next": "Run “berth login” without --user and approve it in the browser.",
}


def _no_sign_in(status: int) -> dict[str, str]:
    if status == 429:
        return {"detail": "Too many tries.", "next": "Wait a minute, then try again."}
    return {
        "detail": "Name and password do not fit together.",
        "next": "Check both, or run “berth login” without --user.",
    }
