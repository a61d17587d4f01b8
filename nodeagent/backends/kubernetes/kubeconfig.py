"""Where the API server is and how the agent logs in: a kubeconfig, or the service account of its own pod."""

from __future__ import annotations

import base64
import json
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from nodeagent.backends.kubernetes.quantities import listed

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AS_JSON: Final = "kubectl config view --raw --minify --flatten -o json"


class KubeconfigError(Exception):
    """The configuration cannot be used; the sentence says what to give."""


@dataclass(frozen=True, slots=True)
class Login:
    """An API server and how to log in. ``token_file`` is read anew, because such tokens run out; ``tls`` verifies."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None
    token: str = ""
    token_file: Path | None = None

    def bearer(self) -> str:
        """Return the token as it is now, "" where a certificate is what logs in. Raises KubeconfigError."""
        if self.token_file is None:
            return self.token
        try:
            return self.token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as no:
            raise KubeconfigError(f"the token in {self.token_file} cannot be read: {no}") from no


def in_cluster(environ: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> Login:
    """Return the login of a pod's service account; raises KubeconfigError outside of a pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists() or not port.isdecimal():
        raise KubeconfigError(
            "this is no pod with a service account: name a kubeconfig with --kube-config, such as"
            f" {AS_JSON} prints it"
        )
    return Login(host, int(port), "", _verifying(str(folder / "ca.crt"), None), token_file=folder / "token")


def from_file(file: Path, context: str = "") -> Login:
    """Return the login of a kubeconfig; ``context`` "" is its current one. Raises KubeconfigError."""
    tree = _read(file)
    name = context or str(tree.get("current-context") or "")
    chosen = _named(tree, "contexts", name, "context")
    cluster = _named(tree, "clusters", str(chosen.get("cluster")), "cluster")
    user = _named(tree, "users", str(chosen.get("user")), "user")
    for key in ("exec", "auth-provider", "username"):
        if user.get(key):
            raise KubeconfigError(
                f"{file} logs in by {key}, which needs programs or people: give the agent the token of a service"
                " account (docs/kubernetes.md), or a client certificate"
            )
    if cluster.get("insecure-skip-tls-verify"):
        raise KubeconfigError(
            f"{file} says insecure-skip-tls-verify: certificates are always verified here; give the cluster's own"
            " certificate as certificate-authority-data"
        )
    url = urlsplit(str(cluster.get("server", "")))
    is_here = url.hostname in ("127.0.0.1", "::1", "localhost")
    if url.hostname is None or not (url.scheme == "https" or (url.scheme == "http" and is_here)):
        raise KubeconfigError(f"{file}: the server is https://HOST:PORT, or http:// on this host alone")
    tls = None
    if url.scheme == "https":
        tls = _verifying(
            _data(cluster, "certificate-authority", file), str(cluster.get("tls-server-name") or "")
        )
        _add_certificate(tls, user, file)
    token_file = user.get("tokenFile")
    return Login(
        url.hostname, url.port or (443 if tls else 80), url.path.rstrip("/"), tls, token=str(user.get("token") or ""),
        token_file=file.parent / str(token_file) if token_file else None,
    )  # fmt: skip


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as no:
        raise KubeconfigError(f"the kubeconfig {file} cannot be read: {no}") from no
    try:
        tree = json.loads(text)
    except ValueError:
        try:
            tree = import_module("yaml").safe_load(text)
        except ImportError as no:
            raise KubeconfigError(
                f"{file} is YAML, and PyYAML is not installed: {AS_JSON} > {file}.json"
            ) from no
        except Exception as no:  # whatever PyYAML has against it
            raise KubeconfigError(f"{file} is neither JSON nor YAML: {no}") from no
    if not isinstance(tree, dict):
        raise KubeconfigError(f"{file} is no kubeconfig: {AS_JSON} prints one")
    return tree


def _named(tree: dict[str, Any], plural: str, name: str, singular: str) -> dict[str, Any]:
    for one in listed(tree, plural):
        if one.get("name") == name and isinstance(one.get(singular), dict):
            return dict(one[singular])
    known = ", ".join(str(one.get("name")) for one in listed(tree, plural)) or "none"
    raise KubeconfigError(f"the kubeconfig has no {singular} {name!r}; it has {known}")


def _data(part: dict[str, Any], name: str, file: Path) -> str | bytes | None:
    """Return what a kubeconfig gives as text (bytes) or as a file (its path), None for neither."""
    told = part.get(f"{name}-data")
    if told:
        try:
            return base64.b64decode(str(told), validate=True)
        except ValueError as no:
            raise KubeconfigError(f"{file}: {name}-data is not base64") from no
    return str(file.parent / str(part[name])) if part.get(name) else None


def _verifying(authority: str | bytes | None, server_name: str | None) -> ssl.SSLContext:
    """Return a context that verifies, by the cluster's own authority or those of the host."""
    try:
        if isinstance(authority, bytes):
            tls = ssl.create_default_context(cadata=authority.decode("ascii"))
        else:
            tls = ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as no:
        raise KubeconfigError(f"the certificate of the cluster's authority cannot be used: {no}") from no
    if server_name:
        raise KubeconfigError("tls-server-name is not supported: name the server as its certificate does")
    return tls


def _add_certificate(tls: ssl.SSLContext, user: dict[str, Any], file: Path) -> None:
    certificate, key = _data(user, "client-certificate", file), _data(user, "client-key", file)
    if certificate is None:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="berth-kube-") as folder:  # mode 0700; ssl reads files alone
            tls.load_cert_chain(
                _as_file(certificate, Path(folder, "crt")), _as_file(key or certificate, Path(folder, "key"))
            )
    except (OSError, ValueError) as no:
        raise KubeconfigError(f"{file}: the client's certificate or key cannot be used: {no}") from no


def _as_file(told: str | bytes, file: Path) -> str:
    if isinstance(told, str):
        return told
    file.write_bytes(told)
    return str(file)


def server_of(login: Login) -> str:
    """Return the address of the API server, for people."""
    return f"{login.host}:{login.port}{login.path}"
