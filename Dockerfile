# One image for web, worker, beat, migrations and the simulated agent; the servers are other containers.
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 \
    UV_PROJECT_ENVIRONMENT=/opt/venv \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    PATH=/opt/venv/bin:$PATH

RUN pip install --no-cache-dir uv==0.13.8 \
 && useradd --create-home --uid 10001 berth \
 && install -d -o berth -g berth /srv/berth /var/lib/berth /enrol

WORKDIR /srv/berth
# Dependencies first: they change less often than the code. The embedded engines stay out.
COPY pyproject.toml uv.lock README.md LICENSE ./
COPY nodeagent/pyproject.toml nodeagent/
RUN uv sync --frozen --no-default-groups --group fast --no-install-workspace

COPY manage.py ./
COPY portal portal
COPY scheduler scheduler
COPY nodeagent nodeagent
COPY templates templates
COPY static static
COPY locale locale
RUN uv sync --frozen --no-default-groups --group fast

USER berth
VOLUME /var/lib/berth
ENV BERTH_DATA=/var/lib/berth
EXPOSE 8000
CMD ["uvicorn", "portal.asgi:application", "--host", "0.0.0.0", "--port", "8000", \
     "--loop", "uvloop", "--http", "httptools", "--ws", "websockets-sansio", "--no-access-log", "--no-server-header", "--no-proxy-headers"]
