"""Exit 1 when a model has changed without a migration. Unlike `makemigrations --check` it asks no database."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import django
from django.apps import apps
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
django.setup()

loader = MigrationLoader(None)
detector = MigrationAutodetector(loader.project_state(), ProjectState.from_apps(apps))
missing = detector.changes(graph=loader.graph)
for app, migrations in missing.items():
    for migration in migrations:
        for operation in migration.operations:
            sys.stderr.write(f"{app}: no migration says: {operation.describe()}\n")
conflicts = loader.detect_conflicts()
for app, names in conflicts.items():
    sys.stderr.write(f"{app}: two migrations follow the same one: {', '.join(names)}\n")
sys.exit("Run `uv run manage.py makemigrations`." if missing or conflicts else 0)
