# One image for web, worker, beat, migrations and the simulated agent; the servers are other containers.
FROM python:3.11-slim AS base
RUN pip install --no-cache-dir uv==0.13.8
WORKDIR /srv/berth

# The documentation, which the portal serves at /docs/; what builds it stays out of the image.
FROM base AS documentation
COPY pyproject.toml uv.lock mkdocs.yml ./
COPY nodeagent/pyproject.toml nodeagent/
COPY docs docs
RUN NO_MKDOCS_2_WARNING=1 uv run --frozen --only-group docs mkdocs build --strict --quiet

FROM base

ENV PYTHONUNBUFFERED=1 \
    UV_PROJECT_ENVIRONMENT=/opt/venv \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    PATH=/opt/venv/bin:$PATH

RUN useradd --create-home --uid 10001 berth \
 && install -d -o berth -g berth /srv/berth /var/lib/berth /enrol

# Dependencies first: they change less often than the code. The embedded engines stay out.
COPY pyproject.toml uv.lock README.md LICENSE ./
COPY nodeagent/pyproject.toml nodeagent/
RUN uv sync --frozen --no-default-groups --group fast --no-install-workspace

COPY manage.py hatch_build.py ./
COPY portal portal
COPY scheduler scheduler
COPY nodeagent nodeagent
COPY templates templates
COPY static static
COPY locale locale
COPY --from=documentation /srv/berth/site site
RUN uv sync --frozen --no-default-groups --group fast

USER berth
VOLUME /var/lib/berth
ENV BERTH_DATA=/var/lib/berth
EXPOSE 8000
CMD ["uvicorn", "portal.asgi:application", "--host", "0.0.0.0", "--port", "8000", \
     "--loop", "uvloop", "--http", "httptools", "--ws", "websockets-sansio", "--no-access-log", "--no-server-header", "--no-proxy-headers"]
