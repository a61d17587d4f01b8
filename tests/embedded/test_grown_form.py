from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

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

    assert lasting == {"postgres", "redis", "proxy", "web", "worker", "beat", "agent"}
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


def test_the_agent_reaches_neither_the_database_nor_the_broker(compose: dict[str, Any]) -> None:
    services = compose["services"]

    seen = set(services["agent"]["networks"])

    assert "environment" not in services["agent"]
    assert not seen & set(services["postgres"]["networks"])
    assert not seen & set(services["redis"]["networks"])
    assert seen & set(services["web"]["networks"])


def test_no_secret_stands_in_the_compose_file(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|DATABASE_URL", variable):
                assert "${" in str(value), f"{name}: {variable}"


def test_the_image_is_built_from_files_that_exist_and_docker_may_see() -> None:
    seen = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    copied = set()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            copied.update(line.split()[1:-1])

    assert seen <= copied
    assert {one for one in copied if one.partition("/")[0] not in seen} == set()
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_image_installs_the_same_uv_as_the_makefile() -> None:
    pinned = re.compile(r"uv==([\d.]+)").search((ROOT / "Dockerfile").read_text())

    assert pinned
    assert f"UV_VERSION := {pinned[1]}\n" in (ROOT / "Makefile").read_text()
