"""A directory for tests: entries in the library's own stand-in, and the same in an OpenLDAP server if there is one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ldap3

BASE = "dc=example,dc=org"
SERVICE, SERVICE_PASSWORD = f"cn=berth,{BASE}", "looks people up"
SLAPD = shutil.which("slapd") or "/usr/sbin/slapd"
PEOPLE = {
    "ada": {"cn": "Ada Example", "mail": "ada@example.org", "password": "ada's own"},
    "bob": {"cn": "Bob Elsewhere", "mail": "bob@example.org", "password": "bob's own"},
    "cleo": {"cn": "Cleo Example", "mail": "no mail", "password": "cleo's own"},
}
GROUPS = {"ml people": ("ada", "bob"), "ml leads": ("ada",)}


def dn_of(name: str) -> str:
    return f"uid={name},ou=people,{BASE}"


def group_dn(name: str) -> str:
    return f"cn={name},ou=groups,{BASE}"


class StandIn(ldap3.Connection):
    """The library's connection on entries in memory, whatever the address; ``said`` has what was asked of it."""

    said: list[tuple[str, str]] = []

    def __init__(self, server: Any, **told: Any) -> None:
        super().__init__(server, client_strategy=ldap3.MOCK_SYNC, **told)
        self.strategy.add_entry(SERVICE, {"cn": "berth", "userPassword": SERVICE_PASSWORD})
        self.strategy.add_entry(BASE, {"dc": "example", "objectClass": "domain"})
        for number, (name, one) in enumerate(PEOPLE.items(), 1):
            entry = {
                "uid": name, "cn": one["cn"], "mail": one["mail"], "userPassword": one["password"],
                "entryUUID": f"00000000-0000-0000-0000-00000000000{number}", "objectClass": "inetOrgPerson",
            }  # fmt: skip
            self.strategy.add_entry(dn_of(name), entry)
        for name, members in GROUPS.items():
            self.strategy.add_entry(
                group_dn(name),
                {"cn": name, "member": [dn_of(one) for one in members], "objectClass": "groupOfNames"},
            )

    def search(self, base: str, wanted: str, *rest: Any, **told: Any) -> Any:
        self.said.append((base, wanted))
        return super().search(base, wanted, *rest, **told)


@contextmanager
def open_ldap(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Run OpenLDAP with those entries: its plain address, its address over TLS, and whose certificate to trust."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "db").mkdir()
    (folder / "slapd.conf").write_text(f"""
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
moduleload memberof
TLSCertificateFile {cert}
TLSCertificateKeyFile {key}
database mdb
suffix "{BASE}"
rootdn "{SERVICE}"
rootpw "{SERVICE_PASSWORD}"
directory {folder / "db"}
overlay memberof
""")
    ports = [_unused_port(), _unused_port()]
    plain, safe = f"ldap://127.0.0.1:{ports[0]}", f"ldaps://localhost:{ports[1]}"
    server = subprocess.Popen(
        [SLAPD, "-f", folder / "slapd.conf", "-h", f"{plain} {safe}", "-d", "0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_for(ports[0])
        with ldap3.Connection(plain, user=SERVICE, password=SERVICE_PASSWORD, auto_bind=True) as session:
            _fill(session)
        yield plain, safe, cert
    finally:
        server.terminate()
        server.wait()


def _fill(session: Any) -> None:
    session.add(BASE, ["dcObject", "organization"], {"o": "Example", "dc": "example"})
    for unit in ("people", "groups"):
        session.add(f"ou={unit},{BASE}", ["organizationalUnit"])
    for name, one in PEOPLE.items():
        session.add(
            dn_of(name), ["inetOrgPerson"],
            {"cn": one["cn"], "sn": "Example", "mail": one["mail"], "userPassword": one["password"]},
        )  # fmt: skip
    for name, members in GROUPS.items():
        session.add(group_dn(name), ["groupOfNames"], {"member": [dn_of(one) for one in members]})
    assert session.result["result"] == 0, session.result


def _unused_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(port: int) -> None:
    for _try in range(200):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("OpenLDAP did not come up")


HAS_OPEN_LDAP = os.access(SLAPD, os.X_OK) and Path("/usr/lib/ldap/back_mdb.so").exists()
