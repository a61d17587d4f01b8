"""All settings of the portal, read once from the environment.

Every reader is typed and refuses nonsense at start. A secret may come from a file: ``NAME_FILE``.
docs/settings.md lists the variables; a test holds it against this file.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from nodeagent.protocol.forms import is_gateway
from nodeagent.protocol.limits import MOST_GATEWAYS
from portal.common.environment import (
    read_apps_domain,
    read_bool,
    read_mail_server,
    read_networks,
    read_origin,
    read_whole,
    refuse_unsafe,
)
from portal.common.static_files import digest

BASE_DIR = Path(__file__).resolve().parent.parent
# Templates, static files and translations lie beside the code in a checkout, and inside it in an installed wheel.
_SHIPPED = Path(__file__).resolve().parent / "shipped"
IS_INSTALLED = _SHIPPED.is_dir()
FILES_DIR = _SHIPPED if IS_INSTALLED else BASE_DIR
env = environ.FileAwareEnv()

DEBUG: bool = read_bool(env, "BERTH_DEBUG")
DEMO: bool = read_bool(env, "BERTH_DEMO")
DATA_DIR = Path(env.str("BERTH_DATA", default=str((Path.cwd() if IS_INSTALLED else BASE_DIR) / ".berth")))


# Points at which a drill breaks this process on purpose (portal/common/failpoints.py) count in a drill alone.
DRILL: bool = read_bool(env, "BERTH_DRILL")
FAILPOINTS: str = env.str("BERTH_FAILPOINTS", default="")
if FAILPOINTS and not DRILL:
    raise ImproperlyConfigured(
        "BERTH_FAILPOINTS breaks Berth on purpose: it is for drills, with BERTH_DRILL=1."
    )

# Commands that serve nobody run with a key of the moment; the web server refuses to (portal/asgi.py).
SECRET_KEY: str = env.str("BERTH_SECRET_KEY", default="")
HAS_SECRET_KEY = bool(SECRET_KEY)
# By which agents know this portal; it must outlive a change of the secret key (docs/nodes.md).
PORTAL_KEY: str = env.str("BERTH_PORTAL_KEY", default="") or SECRET_KEY
PORTAL_KEY_BEFORE: str = env.str("BERTH_PORTAL_KEY_BEFORE", default="")
if any(0 < len(key) < 50 for key in (env.str("BERTH_PORTAL_KEY", default=""), PORTAL_KEY_BEFORE)):
    raise ImproperlyConfigured("BERTH_PORTAL_KEY and BERTH_PORTAL_KEY_BEFORE have 50 or more characters.")
ALLOWED_HOSTS: list[str] = env.list(
    "BERTH_ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]", "testserver"]
)
CSRF_TRUSTED_ORIGINS: list[str] = env.list("BERTH_CSRF_TRUSTED_ORIGINS", default=[])
BEHIND_TLS: bool = read_bool(env, "BERTH_BEHIND_TLS")
TRUSTED_PROXIES = read_networks(env, "BERTH_TRUSTED_PROXIES")
if DRILL and not set(ALLOWED_HOSTS) <= {"localhost", "127.0.0.1", "[::1]", "testserver"}:
    raise ImproperlyConfigured("BERTH_DRILL is for a portal that answers this machine alone.")

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django.contrib.humanize",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "csp",
    "portal.common",
    "portal.accounts",
    "portal.teams",
    "portal.audit",
    "portal.sso",
    "portal.second_factor",
    "portal.notifications",
    "portal.fleet",
    "portal.catalog",
    "portal.policies",
    "portal.budgets",
    "portal.quotas",
    "portal.leases",
    "portal.jobs",
    "portal.telemetry",
    "portal.billing",
    "portal.load",
    "portal.agents",
    "portal.gateway",
    "portal.idle",
    "portal.advice",
    "portal.cluster_usage",
    "portal.alerts",
    "portal.lab",
    "portal.backup",
    "portal.web",
    "portal.api",
    "portal.demo",
]

MIDDLEWARE = [
    "portal.common.middleware.request_id",
    "portal.common.addresses.forget_strange_scheme",
    "portal.common.middleware.allow_no_sensors",
    "django.middleware.security.SecurityMiddleware",
    "portal.common.static_files.CompressPages",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "portal.common.middleware.refuse_unclean_input",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "portal.accounts.sessions.keep_session",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.web.impersonation.SeenAs",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "portal.accounts.zones.OwnTimeZone",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "portal.common.middleware.ErrorsForPeople",
]

ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [FILES_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.web.context.page",
            ],
            "builtins": ["portal.common.templatetags.readable", "portal.common.templatetags.parts"],
        },
    }
]

# --- Stores -----------------------------------------------------------------------------------

DATABASES = {"default": env.db("DATABASE_URL", default="postgres://berth@localhost:5432/berth")}
if "postgresql" not in DATABASES["default"]["ENGINE"]:
    raise ImproperlyConfigured(
        "DATABASE_URL must name PostgreSQL 15 or newer: Berth's guarantees live in its constraints."
    )
refuse_unsafe(
    debug=DEBUG,
    demo=DEMO,
    behind_tls=BEHIND_TLS,
    key=SECRET_KEY,
    hosts=ALLOWED_HOSTS,
    origins=CSRF_TRUSTED_ORIGINS,
    database=DATABASES["default"],
    proxies=TRUSTED_PROXIES,
)
SECRET_KEY = SECRET_KEY or secrets.token_urlsafe(50)
DATABASES["default"].update(
    CONN_MAX_AGE=0,
    CONN_HEALTH_CHECKS=False,  # the pool checks a connection before it hands it out
    DISABLE_SERVER_SIDE_CURSORS=False,
)
DATABASES["default"].setdefault("OPTIONS", {})
DATABASES["default"]["OPTIONS"].update(
    options="-c lock_timeout=5s -c statement_timeout=30s -c idle_in_transaction_session_timeout=15s",
    # Statements are planned once per connection instead of at every call: half of PostgreSQL's work here.
    server_side_binding=True,
    prepare_threshold=5,
    pool={
        "min_size": read_whole(env, "BERTH_DB_POOL_MIN", default=1, least=0, most=1000),
        "max_size": read_whole(env, "BERTH_DB_POOL_MAX", default=8, least=1, most=1000),
        "timeout": 10,
    },
)

REDIS_URL: str = env.str("REDIS_URL", default="redis://localhost:6379/0")


def _broker_url(url: str) -> str:
    """Celery's spelling of a Redis address: unix sockets are ``redis+socket://`` there."""
    if not url.startswith("unix://"):
        return url
    path, _sep, query = url.removeprefix("unix://").partition("?")
    number = dict(p.split("=", 1) for p in query.split("&") if "=" in p).get("db", "0")
    return f"redis+socket://{path}?virtual_host={number}"


CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS_URL}}

# --- Celery: rows are the work, tasks are nudges (docs/adr/0001) --------------------------------

CELERY_BROKER_URL = _broker_url(REDIS_URL)
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_TIME_LIMIT = 120
CELERY_TASK_SOFT_TIME_LIMIT = 90
CELERY_WORKER_MAX_TASKS_PER_CHILD = 20_000
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 10
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TIMEZONE = "UTC"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 300,
    "unacked_restore_interval": 2,
    "unacked_restore_throttle": 1,
    "socket_timeout": 5,
    "socket_connect_timeout": 3,
    "health_check_interval": 15,
}
CELERY_BEAT_SCHEDULE = {
    "tick": {"task": "scheduler.tasks.tick", "schedule": 1.0, "options": {"expires": 5}},
    "sweep": {"task": "scheduler.tasks.sweep_outbox", "schedule": 5.0, "options": {"expires": 10}},
    "meter": {"task": "scheduler.tasks.meter", "schedule": 10.0, "options": {"expires": 20}},
    "learn_demand": {"task": "scheduler.tasks.learn_demand", "schedule": 300.0, "options": {"expires": 300}},
    "forecast_load": {
        "task": "scheduler.tasks.forecast_load",
        "schedule": 300.0,
        "options": {"expires": 300},
    },
    "note_forecasts": {"task": "scheduler.tasks.note_forecasts", "schedule": 5.0, "options": {"expires": 5}},
    "learn_durations": {
        "task": "scheduler.tasks.learn_durations",
        "schedule": 3600.0,
        "options": {"expires": 3600},
    },
    "predict_durations": {
        "task": "scheduler.tasks.predict_durations",
        "schedule": 10.0,
        "options": {"expires": 10},
    },
    "calibrate": {"task": "scheduler.tasks.calibrate", "schedule": 60.0, "options": {"expires": 60}},
    "settle_usage": {"task": "scheduler.tasks.settle_usage", "schedule": 60.0, "options": {"expires": 60}},
    "count_capacity": {
        "task": "scheduler.tasks.count_capacity",
        "schedule": 300.0,
        "options": {"expires": 300},
    },
    "watch_budgets": {
        "task": "scheduler.tasks.watch_budgets",
        "schedule": 300.0,
        "options": {"expires": 300},
    },
    "mail_reports": {"task": "scheduler.tasks.mail_reports", "schedule": 60.0, "options": {"expires": 60}},
    "book_series": {"task": "scheduler.tasks.book_series", "schedule": 60.0, "options": {"expires": 60}},
    "forget_logs": {"task": "scheduler.tasks.forget_logs", "schedule": 3600.0, "options": {"expires": 3600}},
    "forget_health": {
        "task": "scheduler.tasks.forget_health",
        "schedule": 3600.0,
        "options": {"expires": 3600},
    },
    "chain_audit": {"task": "scheduler.tasks.chain_audit", "schedule": 5.0, "options": {"expires": 10}},
    "tidy_accounts": {
        "task": "scheduler.tasks.tidy_accounts",
        "schedule": 3600.0,
        "options": {"expires": 3600},
    },
    "check_invariants": {
        "task": "scheduler.tasks.check_invariants",
        "schedule": 3600.0,
        "options": {"expires": 3600},
    },
    "resolve_digests": {
        "task": "scheduler.tasks.resolve_digests",
        "schedule": 10.0,
        "options": {"expires": 10},
    },
    "deliver": {"task": "scheduler.tasks.deliver", "schedule": 2.0, "options": {"expires": 5}},
    "watch_alerts": {"task": "scheduler.tasks.watch_alerts", "schedule": 15.0, "options": {"expires": 15}},
    "feed_lab": {"task": "scheduler.tasks.feed_lab", "schedule": 5.0, "options": {"expires": 5}},
    "keep_rollups": {"task": "scheduler.tasks.keep_rollups", "schedule": 60.0, "options": {"expires": 60}},
    "roll_up": {"task": "scheduler.tasks.roll_up", "schedule": 60.0, "options": {"expires": 60}},
}

# --- People, languages, safety ------------------------------------------------------------------

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["portal.accounts.backends.PeopleBackend"]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "web:sign_in"
LOGIN_REDIRECT_URL = "web:home"
LOGOUT_REDIRECT_URL = "web:sign_in"

# How notifications leave the portal (docs/notifications.md).
EMAIL_URL: str = env.str("BERTH_EMAIL_URL", default="")
HAS_MAIL = bool(EMAIL_URL)
if HAS_MAIL:
    globals().update(read_mail_server(EMAIL_URL))
EMAIL_TIMEOUT = 8
DEFAULT_FROM_EMAIL: str = env.str("BERTH_EMAIL_FROM", default="berth@localhost")
NOTIFY_PRIVATE_ADDRESSES: bool = read_bool(env, "BERTH_NOTIFY_PRIVATE_ADDRESSES")

LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("zh-hans", _("Simplified Chinese"))]
LOCALE_PATHS = [FILES_DIR / "locale"]
USE_I18N = True
FORMAT_MODULE_PATH = ["portal.formats"]
USE_TZ = True
# A folder with fonts for PDFs, beside those of the system.
BERTH_PDF_FONTS: str = env.str("BERTH_PDF_FONTS", default="")
TIME_ZONE = env.str("BERTH_TIME_ZONE", default="UTC")

# Where `make docs` puts the documentation; served at /docs/ once it is there.
DOCS_DIR = FILES_DIR / "site"
# The files' own digest is part of their address, so that a browser may keep them for ever.
STATIC_URL = f"/static/{digest(FILES_DIR / 'static')}/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STATICFILES_DIRS = [FILES_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG


def WHITENOISE_IMMUTABLE_FILE_TEST(_path: str, _url: str) -> bool:  # noqa: N802 (the name of a setting)
    """Return whether the file under this address never changes."""
    return not DEBUG


CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "connect-src": ["'self'"],
        "frame-ancestors": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "object-src": ["'none'"],
    },
    # The schema browser brings its own inline style; it shows no data of ours.
    "EXCLUDE_URL_PREFIXES": ["/api/docs/"],
}
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = BEHIND_TLS
if BEHIND_TLS:  # no page of another host of the domain can set a cookie by such a name
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "__Host-sessionid", "__Host-csrftoken"
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if BEHIND_TLS else None
SECURE_HSTS_SECONDS = 31_536_000 if BEHIND_TLS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = BEHIND_TLS
# Preloading is for a whole domain and takes months to undo: its owner decides, not one site on it.
SILENCED_SYSTEM_CHECKS = ["security.W021"]
SECURE_SSL_REDIRECT = BEHIND_TLS
# The one address of the portal that passkeys are bound to; none: they are not offered.
PASSKEY_ORIGIN: str = read_origin(env, "BERTH_PASSKEY_ORIGIN")
# How long the link lives by which somebody new chooses a password.
PASSWORD_RESET_TIMEOUT = 3 * 86_400
SESSION_COOKIE_HTTPONLY = True
SESSION_ENGINE = "portal.accounts.sessions"
SESSION_IDLE_S = read_whole(env, "BERTH_SESSION_IDLE_S", default=43_200, least=60, most=31_536_000)
SESSION_COOKIE_AGE = read_whole(env, "BERTH_SESSION_MOST_S", default=604_800, least=60, most=31_536_000)
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
# A file that finance imports comes in a form: at most 2 MiB of text, which a browser sends as it is.
DATA_UPLOAD_MAX_MEMORY_SIZE = 3 * 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 200
DATA_UPLOAD_MAX_NUMBER_FILES = 0
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "portal.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_THROTTLE_CLASSES": ["portal.common.throttle.PersonThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["portal.api.parsers.StrictJSONParser"],
    "DEFAULT_PAGINATION_CLASS": "portal.api.pagination.Pages",
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "portal.api.problems.handle",
    "PAGE_SIZE": 50,
    "COERCE_DECIMAL_TO_STRING": True,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Berth API",
    "DESCRIPTION": "Ask for GPU time, see it become active, find it on the bill.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "Role": "portal.teams.models.Role",
        "RequestState": "portal.leases.states.RequestState",
        "LeaseState": "portal.leases.states.LeaseState",
        "JobState": "portal.jobs.states.JobState",
        "IdleState": "portal.idle.models.IdleState",
        "SizeVerdict": "portal.advice.sizing.SizeVerdict",
        "LabState": "portal.lab.models.LabState",
        "Work": "portal.leases.states.WorkloadKind",
        "PeriodState": "portal.billing.models.PeriodState",
        "AlertAction": "portal.alerts.models.AlertAction",
        "AlertAudience": "portal.alerts.models.AlertAudience",
        "Level": "portal.notifications.models.AnnouncementLevel",
        "BudgetAction": "portal.budgets.models.BudgetAction",
        "NoteKind": ["credit", "debit"],
        "EnergyBasis": "portal.billing.energy.EnergyBasis",
        "EnergyFactorKind": "portal.billing.models.EnergyFactorKind",
        "RefundCause": "portal.billing.models.RefundCause",
        "PromiseOutcome": "portal.leases.models.PromiseOutcome",
        "NodeState": ["online", "stale", "offline", "never"],
    },
}

# A scraper's token for /metrics, beside those of operators; none: operators and this host alone.
METRICS_TOKEN: str = env.str("BERTH_METRICS_TOKEN", default="")
if 0 < len(METRICS_TOKEN) < 20:
    raise ImproperlyConfigured("BERTH_METRICS_TOKEN has 20 or more characters: openssl rand -hex 24")

# --- Berth's own figures ------------------------------------------------------------------------

DAY_S = 86_400
NODE_STALE_AFTER_S = read_whole(env, "BERTH_NODE_STALE_AFTER_S", default=15, least=1, most=DAY_S)
NODE_LOST_AFTER_S = read_whole(env, "BERTH_NODE_LOST_AFTER_S", default=300, least=1, most=DAY_S)
LEASE_WARN_BEFORE_S = read_whole(env, "BERTH_LEASE_WARN_BEFORE_S", default=600, least=0, most=30 * DAY_S)
LEASE_GRACE_S = read_whole(env, "BERTH_LEASE_GRACE_S", default=30, least=0, most=DAY_S)
JOB_LOG_MIB = read_whole(env, "BERTH_JOB_LOG_MIB", default=100, least=1, most=100_000)
JOB_LOG_DAYS = read_whole(env, "BERTH_JOB_LOG_DAYS", default=30, least=1, most=36_500)
JOB_ARTIFACT_MIB = read_whole(env, "BERTH_JOB_ARTIFACT_MIB", default=1024, least=0, most=10**6)
JOB_ARTIFACT_FILES = read_whole(env, "BERTH_JOB_ARTIFACT_FILES", default=1000, least=0, most=10_000)
JOB_ARTIFACT_DAYS = read_whole(env, "BERTH_JOB_ARTIFACT_DAYS", default=30, least=1, most=36_500)
# Where their output and these files are kept: a folder, or any back end of django-storages with its options.
_JOBS_BACKEND: str = env.str("BERTH_JOB_STORAGE", default="django.core.files.storage.FileSystemStorage")
_JOBS_OPTIONS: dict[str, Any] = env.json("BERTH_JOB_STORAGE_OPTIONS", default={})
if not isinstance(_JOBS_OPTIONS, dict):
    raise ImproperlyConfigured("BERTH_JOB_STORAGE_OPTIONS is a JSON object, as the back end takes it.")
if _JOBS_BACKEND.endswith(".FileSystemStorage"):
    _JOBS_OPTIONS = {"location": str(DATA_DIR / "jobs"), **_JOBS_OPTIONS}
STORAGES: dict[str, Any] = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "jobs": {"BACKEND": _JOBS_BACKEND, "OPTIONS": _JOBS_OPTIONS},
}
JOB_NOTICE_S = read_whole(env, "BERTH_JOB_NOTICE_S", default=30, least=0, most=3600)
BOOKING_PATIENCE_S = read_whole(env, "BERTH_BOOKING_PATIENCE_S", default=120, least=0, most=DAY_S)
BOOKING_REMIND_S = read_whole(env, "BERTH_BOOKING_REMIND_S", default=900, least=0, most=30 * DAY_S)
HEALTH_KEEP_DAYS = read_whole(env, "BERTH_HEALTH_KEEP_DAYS", default=400, least=1, most=36_500)
MINUTES_KEEP_DAYS = read_whole(env, "BERTH_MINUTES_KEEP_DAYS", default=14, least=14, most=400)
HOURS_KEEP_MONTHS = read_whole(env, "BERTH_HOURS_KEEP_MONTHS", default=13, least=4, most=120)
MAX_TOKENS_PER_PERSON = read_whole(env, "BERTH_MAX_TOKENS_PER_PERSON", default=50, least=1, most=10_000)
MAX_WAITING_PER_TEAM = read_whole(env, "BERTH_MAX_WAITING_PER_TEAM", default=5000, least=1, most=10**6)
API_READS_PER_MINUTE = read_whole(env, "BERTH_API_READS_PER_MINUTE", default=30_000, least=0, most=10**8)
API_CHANGES_PER_MINUTE = read_whole(env, "BERTH_API_CHANGES_PER_MINUTE", default=30_000, least=0, most=10**8)
ACCEPT_NODES: str = env.str("BERTH_ACCEPT_NODES", default="operator")
if ACCEPT_NODES not in ("operator", "auto"):
    raise ImproperlyConfigured("BERTH_ACCEPT_NODES is operator or auto.")

# Addresses of the gateways (portal/gateway): whole ones, or what differs from the portal's own (docs/settings.md).
# Which registries may be asked although they lie in a private network or speak plain HTTP (docs/containers.md).
RESOLVE_IMAGES: bool = read_bool(env, "BERTH_RESOLVE_IMAGES", default=True)
IMAGE_REGISTRIES: list[str] = [one.strip() for one in env.list("BERTH_IMAGE_REGISTRIES", default=[])]
GATEWAYS: list[str] = [told.strip() for told in env.list("BERTH_GATEWAYS", default=[])]
if len(GATEWAYS) > MOST_GATEWAYS or len(set(GATEWAYS)) < len(GATEWAYS) or not all(map(is_gateway, GATEWAYS)):
    raise ImproperlyConfigured(
        f"BERTH_GATEWAYS names at most {MOST_GATEWAYS} gateways, each once, such as :8001, /gateway or"
        " wss://gateway.example.org"
    )
# Where apps of leases have their names, ``*.apps.example.net``: never the portal's own site (docs/apps.md).
APPS_DOMAIN: str = read_apps_domain(env, "BERTH_APPS_DOMAIN", ALLOWED_HOSTS)
APPS_CATALOGUE: str = env.str("BERTH_APPS_CATALOGUE", default="")

_LOG_FORMAT: str = env.str("BERTH_LOG_FORMAT", default="json")
if _LOG_FORMAT not in ("json", "text"):
    raise ImproperlyConfigured("BERTH_LOG_FORMAT is json or text.")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "json": {"()": "portal.common.logs.JsonFormatter"},
        "text": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": _LOG_FORMAT}},
    "root": {"handlers": ["stderr"], "level": env.str("BERTH_LOG_LEVEL", default="INFO")},
    "loggers": {
        "django.request": {"level": "ERROR"},
        "django.security.DisallowedHost": {"level": "CRITICAL"},
        "celery.app.trace": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
        # It logs whole addresses; those of chats are secrets.
        "httpx": {"level": "WARNING"},
    },
}
