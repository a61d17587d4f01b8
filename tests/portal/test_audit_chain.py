"""The audit list is numbered and chained: whoever changes it afterwards is found, with the first bad entry named."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import IntegrityError, close_old_connections, connection, transaction
from django.utils import timezone

from portal.audit.chain import GENESIS, Verdict, link_entries, verify
from portal.audit.models import AuditEntry, AuditHead, AuditLink
from portal.audit.services import record
from tests.portal.builders import World


def run(sql: str, *values: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


@pytest.fixture
def ten(db: None) -> list[int]:
    """Ten linked entries, long settled; returns their ids."""
    at = timezone.now() - timedelta(hours=1)
    for n in range(10):
        record(None, "x.y", f"thing-{n}", at=at, n=n, text="déjà vu", nested={"b": 1.50, "a": None})
    assert link_entries(now=at, batch=4) == 10
    link_entries(now=timezone.now())
    assert verify().fault == ""
    return list(AuditEntry.objects.order_by("id").values_list("pk", flat=True))


def tampered(change: Callable[[], None]) -> Verdict:
    """Change rows past every trigger, as somebody with the database in hand would."""
    run("SET LOCAL session_replication_role = replica")
    change()
    run("SET LOCAL session_replication_role = origin")
    return verify()


@pytest.mark.parametrize("column", ["action = 'z'", "target = 'z'", "detail = '{}'", "at = at + interval '1 us'",
                                    "actor_id = 7", "team_id = 7"])  # fmt: skip
def test_an_edit_is_named(ten: list[int], column: str) -> None:
    found = tampered(lambda: run(f"UPDATE audit_auditentry SET {column} WHERE id = %s", ten[3]))

    assert found.fault == f"entry number 4 (id {ten[3]}) was changed"


def test_a_deleted_entry_is_named(ten: list[int]) -> None:
    found = tampered(lambda: run("DELETE FROM audit_auditentry WHERE id = %s", ten[6]))

    assert found.fault == f"entry number 7 (id {ten[6]}) was deleted"


def test_a_deleted_entry_is_named_when_its_link_went_too(ten: list[int]) -> None:
    def change() -> None:
        run("DELETE FROM audit_auditentry WHERE id = %s", ten[6])
        run("DELETE FROM audit_auditlink WHERE entry_id = %s", ten[6])

    assert tampered(change).fault == "entry number 7 is missing from the chain"


def test_an_entry_put_in_later_is_named(ten: list[int]) -> None:
    def change() -> None:
        run(
            "INSERT INTO audit_auditentry (id, action, target, detail, at) VALUES (-5, 'x', 'y', '{}', now())"
        )
        link_entries(now=timezone.now())

    assert tampered(change).fault == "the entry with id -5 was put in later: the chain does not know it"


def test_a_link_put_in_between_is_named(ten: list[int]) -> None:
    def change() -> None:
        run(
            "INSERT INTO audit_auditentry (id, action, target, detail, at) VALUES (-5, 'x', 'y', '{}', now())"
        )
        run("UPDATE audit_auditlink SET seq = -seq - 1 WHERE seq >= 5")
        run("UPDATE audit_auditlink SET seq = -seq WHERE seq < 0")
        run("INSERT INTO audit_auditlink VALUES (5, -5, now(), sha256('x'))")

    assert tampered(change).fault == "entry number 5 (id -5) was changed"


def test_a_cut_off_end_is_named(ten: list[int]) -> None:
    def change() -> None:
        run("DELETE FROM audit_auditentry WHERE id >= %s", ten[8])
        run("DELETE FROM audit_auditlink WHERE entry_id >= %s", ten[8])

    assert tampered(change).fault == "entry number 9 is cut off: the head says 10"


def test_a_chain_written_anew_is_found_by_a_head_that_was_kept(ten: list[int]) -> None:
    kept = str(AuditHead.objects.get())

    def change() -> None:
        run("UPDATE audit_auditentry SET action = 'z' WHERE id = %s", ten[0])
        run("DELETE FROM audit_auditlink")
        run("DELETE FROM audit_audithead")
        link_entries(now=timezone.now())

    assert tampered(change).fault == ""
    assert verify(expected=kept).fault.startswith("entry number 10 is not the one that was kept")


def test_the_head_cannot_go_back_and_nothing_is_emptied(ten: list[int]) -> None:
    for sql in (
        "UPDATE audit_audithead SET seq = 9",
        "UPDATE audit_audithead SET floor = floor - 1",
        "UPDATE audit_audithead SET digest = sha256('x')",
        "DELETE FROM audit_audithead",
        "DELETE FROM audit_auditlink",
        "UPDATE audit_auditlink SET seq = 99 WHERE seq = 10",
        "UPDATE audit_auditentry SET action = 'z'",
        "DELETE FROM audit_auditentry",
        "TRUNCATE audit_auditentry",
        "TRUNCATE audit_auditlink",
        "TRUNCATE audit_audithead",
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            run(sql)


def test_the_command_says_what_it_found(ten: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    said = io.StringIO()
    record(None, "x.y", "after", at=timezone.now())

    call_command("verify_audit", stdout=said)
    head = said.getvalue().split()[-1]
    call_command("verify_audit", "--expect", head, stdout=said)
    run("SET LOCAL session_replication_role = replica")
    run("DELETE FROM audit_auditentry WHERE id = %s", ten[0])
    with pytest.raises(SystemExit):
        call_command("verify_audit", stderr=said)

    assert "11 entries, all as they were written" in said.getvalue()
    assert f"entry number 1 (id {ten[0]}) was deleted" in said.getvalue()


def test_an_entry_that_commits_late_is_linked_after_those_with_higher_ids(ten: list[int]) -> None:
    at = timezone.now()
    record(None, "x.y", "early", at=at)
    late = AuditEntry.objects.latest("id").pk - 1_000
    run("SELECT setval(pg_get_serial_sequence('audit_auditentry', 'id'), %s)", late + 5_000)
    record(None, "x.y", "later id", at=at)
    link_entries(now=at)
    run(
        "INSERT INTO audit_auditentry (id, action, target, detail, at) VALUES (%s, 'x', 'y', '{}', now())",
        late + 2_000,
    )

    assert link_entries(now=at + timedelta(minutes=14)) == 1
    assert verify().fault == ""


@pytest.mark.django_db(transaction=True)
def test_many_writers_and_linkers_make_one_chain_without_a_fork() -> None:
    at = timezone.now()

    def write() -> None:
        for n in range(30):
            with transaction.atomic():
                record(None, "x.y", f"{threading.get_ident()}-{n}", at=at)
        close_old_connections()
        connection.close()

    def link() -> None:
        for _nth in range(20):
            link_entries(now=at, batch=7)
        connection.close()

    threads = [threading.Thread(target=work) for work in [write] * 4 + [link] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    link_entries(now=at)

    assert list(AuditLink.objects.order_by("seq").values_list("seq", flat=True)) == list(range(1, 121))
    assert verify().fault == ""


def test_an_empty_list_is_well(db: None) -> None:
    link_entries(now=timezone.now())  # tests with transactions of their own empty every table, the head's too

    assert verify() == Verdict(0, f"0:{GENESIS.hex()}")


def test_doors_and_keys_are_written_down(world: World) -> None:
    from django.test import Client

    from tests.portal.builders import PASSWORD

    client = Client()
    client.post("/sign-in/", {"username": "bob", "password": "my secret"})
    client.post("/sign-in/", {"username": "my secret", "password": ""})
    client.post("/sign-in/", {"username": "my secret", "password": "x"})
    client.post("/sign-in/", {"username": "bob", "password": PASSWORD})
    client.post("/tokens/", {"name": "desk", "scope": "read", "days": "30"})
    key = world.user("bob").tokens.get().pk
    for _twice in range(2):
        client.post(f"/tokens/{key}/revoke/")
    client.post("/sign-out/")

    rows = AuditEntry.objects.filter(action__regex="^(sign|token)").order_by("id")
    assert list(rows.values_list("action", "target", "actor__username")) == [
        ("sign_in.failed", "bob", None),
        ("sign_in.failed", "unknown", None),
        ("sign_in", "bob", "bob"),
        ("token.made", "bob", "bob"),
        ("token.revoked", "bob", "bob"),
        ("sign_out", "bob", "bob"),
    ]
    written = str(list(AuditEntry.objects.values_list("detail", flat=True)))
    assert "my secret" not in written
    assert "bth_" not in written.replace(AuditEntry.objects.get(action="token.made").detail["prefix"], "")
