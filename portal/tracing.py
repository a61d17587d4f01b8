"""Traces by OpenTelemetry: only where the extra ``otel`` is installed and an endpoint is set.

The variables are OpenTelemetry's own (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and so on).
"""

from __future__ import annotations

import logging
import os
from importlib import import_module

log = logging.getLogger(__name__)
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_has_started = False


def start_tracing(service: str) -> bool:
    """Trace requests, tasks and queries of this process from now on; says whether it does.

    Call once per process, after a fork, and before Django's handler is made: its middleware is put in first. Safe to
    repeat.
    """
    global _has_started
    if _has_started or not any(os.environ.get(name) for name in ENDPOINTS):
        return _has_started
    try:
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        resources = import_module("opentelemetry.sdk.resources")
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        api = import_module("opentelemetry.trace")
        instruments = [
            getattr(import_module(f"opentelemetry.instrumentation.{module}"), name)
            for module, name in (
                ("django", "DjangoInstrumentor"),
                ("celery", "CeleryInstrumentor"),
                ("psycopg", "PsycopgInstrumentor"),
            )
        ]
    except ImportError as missing:
        log.warning("no traces: install berth[otel] (%s)", missing)
        return False
    os.environ.setdefault("OTEL_SERVICE_NAME", service)
    provider = sdk.TracerProvider(resource=resources.Resource.create())
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    api.set_tracer_provider(provider)
    for instrument in instruments:
        instrument().instrument()
    _has_started = True
    return True
