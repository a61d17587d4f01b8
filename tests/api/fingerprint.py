"""A hash over every table of Berth: equal before and after means nothing changed."""

from __future__ import annotations

from django.apps import apps
from django.db import connection

IGNORED = {"accounts_apitoken.last_used_at"}


def fingerprint() -> str:
    """Return one hash over the rows of all business tables."""
    parts = []
    for model in apps.get_models():
        if not model.__module__.startswith("portal."):
            continue
        table = model._meta.db_table
        columns = [f.column for f in model._meta.concrete_fields if f"{table}.{f.column}" not in IGNORED]
        names = ", ".join(f'"{column}"' for column in columns)
        parts.append(
            f"SELECT '{table}' AS name, md5(coalesce(string_agg(row_text, '|' ORDER BY row_text), '')) AS sum"
            f" FROM (SELECT ROW({names})::text AS row_text FROM {table}) AS rows"
        )
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts) + " ORDER BY name")
        return repr(cursor.fetchall())
