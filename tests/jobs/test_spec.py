from __future__ import annotations

from typing import Any

import pytest

from portal.common.errors import Invalid
from portal.jobs.spec import STRICT, read_spec, seconds_of, words_of

GOOD = {"command": "python train.py", "resources": "h100"}


def faults(**more: Any) -> dict[str, str]:
    with pytest.raises(Invalid) as no:
        read_spec({**GOOD, **more})
    return {name: str(said) for name, said in no.value.fields.items()}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6:00:00", 21600), ("1-12:00:00", 129600), ("2-0", 172800), ("1-2:30", 95400), ("90", 5400),
        ("10:30", 630), ("90m", 5400), ("2h", 7200), ("45s", 45), ("1d", 86400), ("", None), ("soon", None),
        ("-5", None), ("1:2:3:4", None),
    ],
)  # fmt: skip
def test_time_is_read_as_slurm_writes_it(text: str, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


def test_text_is_run_by_a_strict_login_shell_and_a_list_as_it_is() -> None:
    assert words_of("a\nb") == ["bash", "-lc", STRICT + "a\nb"]
    assert words_of(["a", "b c"]) == ["a", "b c"]


@pytest.mark.parametrize(
    ("text", "indices", "at_once"),
    [
        ("1-4", [1, 2, 3, 4], 0),
        ("1-20%4", list(range(1, 21)), 4),
        ("1,3,7-9", [1, 3, 7, 8, 9], 0),
        ("0-10:5", [0, 5, 10], 0),
    ],
)
def test_array_is_read_as_slurm_writes_it(text: str, indices: list[int], at_once: int) -> None:
    spec = read_spec({**GOOD, "array": text})

    assert (spec.array, spec.at_once) == (indices, at_once)


@pytest.mark.parametrize(
    "text", ["4-1", "a", "1-2000", "1-9999999999", "1%0", "1-3%", "%4", "1;2", "1-5:0x", [1]]
)
def test_array_that_makes_no_sense_is_refused(text: object) -> None:
    assert set(faults(array=text)) == {"array"}


def test_every_field_that_cannot_be_used_is_named_at_once() -> None:
    said = faults(
        command=[], comand="x", image="pytorch", env={"CUDA_VISIBLE_DEVICES": "0"}, time="soon", retries={"max": 99},
        artifacts=["../x"], notify=["always"], resources={"gpu": "h100", "memory": "64GB"}, secrets=["A B"],
    )  # fmt: skip

    assert set(said) == {
        "command", "comand", "image", "env", "time", "retries", "artifacts", "notify", "resources", "secrets",
    }  # fmt: skip
    assert "“command”" in said["comand"]
    assert "registry" in said["image"]
    assert "CUDA_VISIBLE_DEVICES" in said["env"]
    assert "flavor" in said["resources"]


@pytest.mark.parametrize(
    "raw", [None, [], "x", 3, {}, {"command": {"a": 1}}, {"command": "x\0y", "resources": "h"}]
)
def test_what_is_no_job_is_refused_with_a_sentence(raw: object) -> None:
    with pytest.raises(Invalid):
        read_spec(raw)


def test_model_with_a_number_is_a_count() -> None:
    spec = read_spec({**GOOD, "resources": {"gpu": "H100:4"}})

    assert (spec.gpu, spec.count) == ("H100", 4)


def test_yaml_reads_on_as_yes_and_so_do_we() -> None:
    assert read_spec({**GOOD, "retries": {"max": 2, True: ["exit:75"]}}).retry_on == ["exit:75"]
