from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from portal.demo.trace.rows import TraceError, read_pods

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "openb_sample.csv"
HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
GOOD = "pod-1,6000,12288,1,460,T4|P100,LS,Running,100,700,100"


def trace(folder: Path, *lines: str) -> Path:
    path = folder / "pods.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def test_a_row_keeps_what_the_mapping_needs(tmp_path: Path) -> None:
    (pod,) = read_pods(trace(tmp_path, GOOD))

    assert (pod.name, pod.num_gpu, pod.gpu_milli, pod.qos) == ("pod-1", 1, 460, "LS")
    assert pod.gpu_specs == ("T4", "P100")
    assert pod.lifetime_s == 600


def test_rows_come_in_order_of_arrival_and_ties_in_order_of_the_file(tmp_path: Path) -> None:
    late = GOOD.replace("pod-1", "late").replace(",100,700,100", ",200,700,200")
    first, second = GOOD, GOOD.replace("pod-1", "pod-2")

    pods = read_pods(trace(tmp_path, late, first, second))

    assert [pod.name for pod in pods] == ["pod-1", "pod-2", "late"]


def test_a_limit_takes_the_first_arrivals(tmp_path: Path) -> None:
    pods = read_pods(trace(tmp_path, GOOD, GOOD.replace("pod-1", "pod-2")), limit=1)

    assert [pod.name for pod in pods] == ["pod-1"]


def test_a_compressed_list_reads_like_a_plain_one(tmp_path: Path) -> None:
    packed = tmp_path / "sample.csv.gz"
    packed.write_bytes(gzip.compress(SAMPLE.read_bytes()))

    assert read_pods(packed) == read_pods(SAMPLE)
    assert len(read_pods(SAMPLE)) == 120


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (GOOD.replace(",1,460,", ",x,460,"), "line 2, column 'num_gpu'"),
        (GOOD.replace(",1,460,", ",-1,460,"), "line 2, column 'num_gpu'"),
        (GOOD.replace(",1,460,", ",1,1001,"), "line 2, column 'gpu_milli'"),
        (GOOD.replace(",1,460,", ",1,0,"), "line 2, column 'gpu_milli'"),
        (GOOD.replace(",1,460,", ",2,460,"), "line 2, column 'gpu_milli'"),
        (GOOD.replace(",100,700,", ",1e3,700,"), "line 2, column 'creation_time'"),
        (GOOD.replace(",100,700,", ",100,99,"), "line 2, column 'deletion_time'"),
        (GOOD.replace(",100,700,", ",100,99999999999999,"), "line 2, column 'deletion_time'"),
        (GOOD.replace("pod-1", ""), "line 2, column 'name'"),
        (GOOD + ",extra", "line 2: 12 cells"),
        ("pod-1,6000", "line 2: 2 cells"),
        ('"pod-1', "line 2: not a line of CSV"),
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_column(tmp_path: Path, line: str, where: str) -> None:
    path = trace(tmp_path, line)

    with pytest.raises(TraceError) as refused:
        read_pods(path)

    assert str(path) in str(refused.value)
    assert where in str(refused.value)


def test_a_bad_row_behind_the_limit_is_found_as_well(tmp_path: Path) -> None:
    path = trace(tmp_path, GOOD, GOOD)

    with pytest.raises(TraceError, match="line 3, column 'name': 'pod-1' stands twice"):
        read_pods(path, limit=1)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "column 'name' is missing"),
        (HEADER.replace("qos,", "").encode(), "column 'qos' is missing"),
        (HEADER.encode(), "no row below the header"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
    ],
)
def test_a_file_that_is_no_pod_list_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "pods.csv"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=sentence):
        read_pods(path)


def test_a_file_that_is_missing_or_torn_is_refused(tmp_path: Path) -> None:
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(gzip.compress(SAMPLE.read_bytes())[:200])

    for path in (torn, tmp_path / "nowhere.csv"):
        with pytest.raises(TraceError, match="cannot be read"):
            read_pods(path)
