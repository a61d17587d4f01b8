"""Migrations stand for themselves: what they did once does not change when the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from django.db import connection

from portal.billing.models import PERIOD_NEXT
from portal.common.states import Table
from portal.leases.states import LEASE_NEXT, REQUEST_NEXT

# The defaults of new rows, which Django names in the migration that makes their field.
DEFAULTS = "portal.common.ids"
PORTAL = Path(__file__).parent.parent.parent / "portal"


@pytest.mark.parametrize(
    "path",
    sorted(PORTAL.glob("*/migrations/*.py")),
    ids=lambda path: f"{path.parent.parent.name}.{path.stem}",
)
def test_a_migration_imports_nothing_of_the_project_but_defaults(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names]

    ours = {name for name in names if name.split(".")[0] in ("portal", "scheduler", "nodeagent", "tools")}
    assert ours <= {DEFAULTS}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("relation", "table"),
    [
        ("leases_lease", LEASE_NEXT),
        ("leases_leaserequest", REQUEST_NEXT),
        ("billing_billingperiod", PERIOD_NEXT),
    ],
)
def test_the_database_lets_through_the_steps_that_the_code_knows(relation: str, table: Table) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_functiondef(%s::regproc)", [f"{relation}_state_guard"])
        (body,) = cursor.fetchone()

    found = {
        was: set(re.findall(r"'(\w+)'", nexts))
        for was, nexts in re.findall(r"OLD\.state = '(\w+)' AND NEW\.state IN \(([^)]*)\)", body)
    }
    assert found == {str(was): {str(now) for now in nexts} for was, nexts in table.items() if nexts}
