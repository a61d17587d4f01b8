from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from django.conf import settings

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "tests/data/compose-spec.json").read_text())


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_the_compose_file_is_valid_by_the_official_schema(compose: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(compose)


def test_the_schema_refuses_a_compose_file_with_a_word_it_does_not_know(compose: dict[str, Any]) -> None:
    wrong = {**compose, "services": {**compose["services"], "web": {"image": "x", "helthcheck": {}}}}

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(SCHEMA).validate(wrong)


def test_every_process_of_the_design_is_there_and_every_lasting_one_is_checked(
    compose: dict[str, Any],
) -> None:
    services = compose["services"]

    lasting = {name for name, service in services.items() if service.get("restart") != "no"}

    assert lasting == {"postgres", "redis", "proxy", "web", "gateway", "worker", "beat", "agent"}
    assert all("healthcheck" in services[name] for name in lasting)


def test_what_a_service_waits_for_exists_and_can_be_waited_for(compose: dict[str, Any]) -> None:
    services = compose["services"]

    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            healthy = how["condition"] == "service_healthy"
            assert needed in services, f"{name} waits for {needed}"
            assert healthy == ("healthcheck" in services[needed]), f"{name} waits for {needed}"


def test_web_can_be_scaled_behind_the_proxy(compose: dict[str, Any]) -> None:
    services = compose["services"]

    assert [name for name, service in services.items() if "ports" in service] == ["proxy"]
    assert set(services["proxy"]["networks"]) & set(services["web"]["networks"])
    assert "http://web:8000" in compose["configs"]["proxy"]["content"]


def test_hosts_of_apps_lead_to_the_gateway_alone(compose: dict[str, Any]) -> None:
    content = compose["configs"]["proxy"]["content"]
    apps = content.partition("server_name")[2]

    assert "BERTH_APPS_DOMAIN" in compose["services"]["gateway"]["environment"]
    assert apps.strip().startswith("~^[^.]+--lse-[^.]+\\.;")
    assert "http://gateway:8000" in apps
    assert "http://web:8000" not in apps


def test_what_a_gateway_writes_of_jobs_web_reads(compose: dict[str, Any]) -> None:
    places = {name: set(compose["services"][name]["volumes"]) for name in ("gateway", "web", "worker")}
    image = (ROOT / "Dockerfile").read_text()
    data = re.search(r"ENV BERTH_DATA=(\S+)", image)[1]  # type: ignore[index]

    assert all(f"jobs:{data}" in found for found in places.values())
    assert f"VOLUME {data}" in image


def test_who_called_is_told_by_the_proxy_and_by_nobody_else(compose: dict[str, Any]) -> None:
    services, networks = compose["services"], compose["networks"]
    trusted = services["web"]["environment"]["BERTH_TRUSTED_PROXIES"]

    (shared,) = set(services["proxy"]["networks"]) & set(services["web"]["networks"])

    assert networks[shared]["ipam"]["config"] == [{"subnet": trusted}]
    assert shared not in services["agent"]["networks"]
    assert "proxy_set_header X-Forwarded-For $$remote_addr;" in compose["configs"]["proxy"]["content"]


def test_every_setting_in_the_compose_file_is_read_by_something(compose: dict[str, Any]) -> None:
    source = (ROOT / "portal" / "settings.py").read_text()
    text = (ROOT / "docker-compose.yml").read_text()
    head = text[: text.index("\nname:")]

    for name, service in compose["services"].items():
        if service["image"].startswith("berth:"):
            for variable in service.get("environment", {}):
                assert f'"{variable}"' in source, f"{name}: nothing reads {variable}"
    for variable in set(re.findall(r"(?<!\$)\$\{(\w+)", text)):
        assert variable in head or f'"{variable}"' in source, f"nothing says what {variable} is"


def test_the_agent_reaches_neither_the_database_nor_the_broker(compose: dict[str, Any]) -> None:
    services = compose["services"]

    seen = set(services["agent"]["networks"])

    assert "environment" not in services["agent"]
    assert not seen & set(services["postgres"]["networks"])
    assert not seen & set(services["redis"]["networks"])
    assert not seen & set(services["web"]["networks"])
    assert seen & set(services["proxy"]["networks"])
    assert "--portal=ws://proxy:8000" in services["agent"]["command"]


def test_no_secret_stands_in_the_compose_file(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|DATABASE_URL", variable):
                assert "${" in str(value), f"{name}: {variable}"


def test_the_image_is_built_from_files_that_exist_and_docker_may_see() -> None:
    seen = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    copied = set()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from=" not in line:
            copied.update(line.split()[1:-1])

    assert seen <= copied
    assert {one for one in copied if one.partition("/")[0] not in seen} == set()
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_every_stage_that_the_image_copies_from_is_built_before() -> None:
    text = (ROOT / "Dockerfile").read_text()

    for stage in re.findall(r"--from=(\S+)", text):
        assert f" AS {stage}\n" in text[: text.index(f"--from={stage}")]


def test_the_image_serves_the_documentation_where_the_portal_looks_for_it() -> None:
    built = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["site_dir"]

    assert ROOT / built == settings.DOCS_DIR
    assert "COPY --from=documentation /srv/berth/site site\n" in (ROOT / "Dockerfile").read_text()


def test_the_image_has_what_building_the_portal_reads() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}

    assert "custom" in build["hooks"]
    assert {"hatch_build.py", *build["packages"], *build["force-include"]} <= copied


def test_the_image_installs_the_same_uv_as_the_makefile() -> None:
    pinned = re.compile(r"uv==([\d.]+)").search((ROOT / "Dockerfile").read_text())

    assert pinned
    assert f"UV_VERSION := {pinned[1]}\n" in (ROOT / "Makefile").read_text()
