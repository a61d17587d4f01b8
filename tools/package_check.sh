#!/bin/sh
# Builds the wheel and tries it in an empty environment, away from the checkout: commands, templates, static files,
# translations. Exits 1 at the first thing that is missing.
set -e
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$UV" build --quiet --wheel --out-dir "$work/dist"
"$UV" venv --quiet "$work/venv"
"$UV" pip install --quiet --python "$work/venv/bin/python" "$work"/dist/*.whl
cd "$work"
venv/bin/berth --help >/dev/null
venv/bin/berth-agent --help >/dev/null
venv/bin/berth-manage help create_organisation >/dev/null
venv/bin/python - <<'END'
import os
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
import django
django.setup()
from pathlib import Path
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.template.loader import get_template
from django.utils.translation import gettext, override
import portal
assert "site-packages" in portal.__file__, portal.__file__
call_command("check")
get_template("web/sign_in.html"), get_template("base.html")
assert finders.find("css/app.css")
with override("zh-hans"):
    assert gettext("Sign in") != "Sign in"
END
echo "the wheel is complete"
