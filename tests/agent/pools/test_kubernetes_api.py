"""A Kubernetes API as the agent speaks it: logins, refusals, and copies that survive whatever befalls a watch."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nodeagent.backends.base import BackendAwayError, BackendRefusedError
from nodeagent.backends.kubernetes.client import (
    ExpiredError,
    KubernetesClient,
    NameTakenError,
    NotThereError,
    refusal,
)
from nodeagent.backends.kubernetes.kubeconfig import KubeconfigError, Login, from_file, in_cluster
from nodeagent.backends.kubernetes.mirror import Mirror
from tests.agent.pools.kubernetes_double import KubernetesDouble


@pytest.fixture
def double() -> Iterator[KubernetesDouble]:
    cluster = KubernetesDouble()
    yield cluster
    cluster.close()


def client_of(double: KubernetesDouble, **login: Any) -> KubernetesClient:
    return KubernetesClient(
        Login("127.0.0.1", double.server.server_port, "", None, **({"token": "first"} | login))
    )


def kubeconfig(folder: Path, *, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    file = folder / "config.json"
    tree = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    file.write_text(json.dumps(tree))
    return file


def test_token_that_ran_out_is_read_anew_from_its_file(double: KubernetesDouble, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    client = client_of(double, token="", token_file=file)
    client.get("/version")

    double.tokens = {"second"}
    with pytest.raises(BackendAwayError, match="401"):
        client.get("/version")
    file.write_text("second")

    assert client.get("/version")["gitVersion"] == "v1.36.2"


@pytest.mark.parametrize(
    ("status", "said", "kind", "code", "is_passing"),
    [
        (404, 'jobs "x" not found', NotThereError, "", False),
        (409, "already exists", NameTakenError, "", False),
        (410, "too old", ExpiredError, "", False),
        (401, "Unauthorized", BackendAwayError, "", False),
        (429, "slow down", BackendAwayError, "", False),
        (503, "etcd", BackendAwayError, "", False),
        (403, "pods is forbidden: exceeded quota: berth", BackendRefusedError, "over_limit", True),
        (403, "error looking up service account x/default", BackendRefusedError, "cluster_refused", True),
        (403, "User cannot create resource", BackendRefusedError, "not_allowed", False),
        (400, 'admission webhook "v" denied the request', BackendRefusedError, "not_allowed", False),
        (422, "Invalid value", BackendRefusedError, "cluster_refused", False),
    ],
)
def test_refusal_means_what_its_status_and_words_say(
    status: int, said: str, kind: type[Exception], code: str, is_passing: bool
) -> None:
    no = refusal("POST", "/x", status, said)

    assert type(no) is kind
    assert said in str(no)
    if isinstance(no, BackendRefusedError):
        assert (no.code, no.is_passing) == (code, is_passing)


def test_answer_that_is_no_json_is_the_cluster_being_away(double: KubernetesDouble) -> None:
    double.is_away = True

    with pytest.raises(BackendAwayError, match="does not answer GET"):
        client_of(double).get("/version")


def some(double: KubernetesDouble, name: str) -> None:
    double.put("nodes", {"metadata": {"name": name}})


def names(mirror: Mirror) -> set[str]:
    return {name for _namespace, name in mirror.objects()}


def test_copy_follows_its_watch_and_goes_on_where_one_was_cut_in_mid_line(double: KubernetesDouble) -> None:
    mirror = Mirror(client_of(double), "/api/v1/nodes")
    first = names(mirror)
    some(double, "n3")
    assert mirror.wait_for(lambda: mirror.version >= double.version, 20)
    double.cut()
    double.drop("nodes", double.find("nodes", "/n1"))
    assert mirror.wait_for(lambda: mirror.version >= double.version, 20)

    assert (first, names(mirror)) == ({"n1", "n2"}, {"n2", "n3"})
    assert (mirror.relists, [name for _namespace, name in mirror.ended]) == (1, ["n1"])
    mirror.close()


@pytest.mark.parametrize("answers_gone", [False, True], ids=["event in the stream", "status"])
def test_copy_is_listed_anew_when_its_version_is_too_old_and_sees_what_was_deleted(
    double: KubernetesDouble, answers_gone: bool
) -> None:
    mirror = Mirror(client_of(double), "/api/v1/nodes")
    names(mirror)
    double.answers_gone = answers_gone
    with double.changed:  # the watch breaks off, and what happens meanwhile is forgotten before it is back
        double.cuts += 1
        double.drop("nodes", double.find("nodes", "/n1"))
        some(double, "n3")
        double.compact()
        double.changed.notify_all()
    assert mirror.wait_for(lambda: mirror.version >= double.version, 20)

    assert names(mirror) == {"n2", "n3"}
    assert mirror.relists == 2
    mirror.close()


def test_copy_lists_page_by_page_and_knows_what_was_just_written(
    double: KubernetesDouble, monkeypatch: Any
) -> None:
    monkeypatch.setattr("nodeagent.backends.kubernetes.mirror.PAGE", "2")
    for number in range(5):
        some(double, f"m{number}")
    mirror = Mirror(client_of(double), "/api/v1/nodes")

    mirror.put({"metadata": {"name": "own", "resourceVersion": str(double.version + 1)}})

    assert names(mirror) == {"n1", "n2", "own", *(f"m{number}" for number in range(5))}
    mirror.close()


def test_copy_of_a_silent_server_is_away_and_comes_back(double: KubernetesDouble) -> None:
    mirror = Mirror(client_of(double), "/api/v1/nodes")
    double.is_away = True
    with pytest.raises(BackendAwayError):
        mirror.objects()
    double.is_away = False

    assert names(mirror) == {"n1", "n2"}
    mirror.close()


def certificate(name: str) -> tuple[bytes, bytes]:
    """Return a certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(pem), private


def test_server_is_verified_by_the_clusters_authority_and_a_certificate_logs_in(
    double: KubernetesDouble, tmp_path: Path
) -> None:
    ours, key = certificate("cluster")
    stranger, _key = certificate("stranger")
    person, person_key = certificate("agent")
    for name, data in (("s.crt", ours), ("s.key", key), ("p.crt", person)):
        (tmp_path / name).write_bytes(data)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "s.crt", tmp_path / "s.key")
    tls.load_verify_locations(tmp_path / "p.crt")
    tls.verify_mode = ssl.CERT_REQUIRED
    double.server.socket = tls.wrap_socket(double.server.socket, server_side=True)
    double.tokens = {""}

    def login(authority: bytes, **user: Any) -> KubernetesClient:
        words = {
            "server": f"https://127.0.0.1:{double.server.server_port}",
            "certificate-authority-data": base64.b64encode(authority).decode(),
        }
        return KubernetesClient(from_file(kubeconfig(tmp_path, cluster=words, user=user)))

    own = {
        "client-certificate-data": base64.b64encode(person).decode(),
        "client-key-data": base64.b64encode(person_key).decode(),
    }
    assert login(ours, **own).get("/version")["minor"] == "36"
    with pytest.raises(BackendAwayError, match="CERTIFICATE_VERIFY_FAILED"):
        login(stranger, **own).get("/version")
    with pytest.raises(BackendAwayError):
        login(ours).get("/version")


@pytest.mark.parametrize(
    ("cluster", "user", "sentence"),
    [
        ({"server": "https://k", "insecure-skip-tls-verify": True}, {}, "always verified"),
        ({"server": "http://k.example.org"}, {}, "https://HOST:PORT"),
        ({"server": "k"}, {}, "https://HOST:PORT"),
        ({"server": "https://k"}, {"exec": {"command": "aws"}}, "by exec"),
        ({"server": "https://k", "certificate-authority-data": "%"}, {}, "not base64"),
        ({"server": "https://k", "certificate-authority-data": "aGk="}, {}, "cannot be used"),
        ({"server": "https://k"}, {"client-certificate": "nowhere.crt"}, "cannot be used"),
    ],
)
def test_kubeconfig_that_cannot_be_used_says_what_to_give(
    cluster: dict[str, Any], user: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(KubeconfigError, match=sentence):
        from_file(kubeconfig(tmp_path, cluster=cluster, user=user))


def test_login_is_that_of_a_pod_or_of_a_kubeconfig_as_yaml(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="--kube-config"):
        in_cluster({}, tmp_path)
    (tmp_path / "token").write_text("abc")
    (tmp_path / "ca.crt").write_bytes(certificate("cluster")[0])
    pod = in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)
    file = tmp_path / "config"
    file.write_text(
        "contexts: [{name: a, context: {cluster: k, user: u}}]\n"
        "clusters: [{name: k, cluster: {server: 'https://k.example.org/p/'}}]\n"
        "users: [{name: u, user: {tokenFile: token}}]\n"
    )
    named = from_file(file, "a")

    assert (pod.bearer(), pod.tls is not None and pod.tls.verify_mode) == ("abc", ssl.CERT_REQUIRED)
    assert (named.host, named.port, named.path, named.bearer()) == ("k.example.org", 443, "/p", "abc")
    with pytest.raises(KubeconfigError, match="it has a"):
        from_file(file, "b")
