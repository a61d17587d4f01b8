"""What Slurm prints, and what it is told: read and written without a cluster."""

from __future__ import annotations

import pwd
from collections.abc import Mapping, Sequence

import pytest

from nodeagent.backends.base import BackendAwayError, BackendRefusedError, LeaseOrder
from nodeagent.backends.slurm.backend import SlurmBackend, fence_minutes
from nodeagent.backends.slurm.commands import SlurmCommands, quiet_environment, refusal, rows
from nodeagent.backends.slurm.output import count_of, given, indexes_of, nodes_of, seconds_of, takes_no_work
from nodeagent.backends.slurm.settings import SlurmSettings
from nodeagent.host.shell import Done, ProgramError

BOB = pwd.struct_passwd(("bob", "x", 1001, 100, "", "/home/bob", "/bin/sh"))
SETTINGS = SlurmSettings("gpu", "gpu:a100", "a100-80gb", 81920, account="berth-{team}", pool_id="p00l")
DETAIL = (
    "JobId=4 JobName=berth-l8-g1 JobState=RUNNING TRES=cpu=4,mem=400M,node=3,gres/gpu=12,gres/gpu:a100=11"
    " JOB_GRES=gpu:a100:12   Nodes=n[1-2] CPU_IDs=62-63 Mem=200 GRES=gpu:a100:4(IDX:0-2,7),gpu:l4:1(IDX:0)"
    "   Nodes=n7 CPU_IDs=62 Mem=200 GRES=gpu:a100:3(IDX:0-2) MinCPUsNode=2"
)


class Script:
    """Answers Slurm's commands from a table, and keeps what was asked."""

    def __init__(self, **answers: str | Done | ProgramError) -> None:
        self.answers, self.asked = answers, []  # type: ignore[var-annotated]

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 0,
    ) -> Done:
        self.asked.append([*argv])
        answer = self.answers.get(argv[0].rpartition("/")[2], "")
        if isinstance(answer, ProgramError):
            raise answer
        return answer if isinstance(answer, Done) else Done(0, answer)


def backend(script: Script, settings: SlurmSettings = SETTINGS, *, is_root: bool = True) -> SlurmBackend:
    def account(name: str) -> pwd.struct_passwd:
        return {"bob": BOB, "root": pwd.getpwuid(0)}[name]

    return SlurmBackend(SlurmCommands(script, "/opt/slurm/bin"), settings, uid_of=account, is_root=is_root)


def order(units: int = 1, *, user: str = "bob", may_exist: bool = False) -> LeaseOrder:
    return LeaseOrder("berth-l1-g1", "l1", 1, user, "vision", units, 3600, 8000, 65536, may_exist=may_exist)


def test_lists_of_hosts_devices_and_times_are_read() -> None:
    assert nodes_of("n[1-3,07],login,gpu-[09-10]") == ("n1", "n2", "n3", "n07", "login", "gpu-09", "gpu-10")
    assert indexes_of("0-1,4") == (0, 1, 4)
    assert indexes_of("N/A") == ()
    assert [seconds_of(text) for text in ("00:05:00", "2-01:00:00", "UNLIMITED")] == [300, 176_400, None]
    assert count_of("gpu:a100:8(S:0-1),gpu:l4:2", "gpu:a100") == 8
    assert count_of("gpu:a100:8(S:0-1),gpu:l4:2", "gpu") == 10
    assert count_of("gpu:a100_3g.40gb:0(IDX:N/A),shard:4", "gpu:a100_3g.40gb") == 0
    assert count_of("gpu:a100_1g.10gb:7", "gpu:a100") == 0
    assert [takes_no_work(state) for state in ("idle", "mixed", "down", "drained", "idle*", "mixed+drain")] == [
        False, False, True, True, True, True,
    ]  # fmt: skip
    assert [fence_minutes(s) for s in (1, 60, 61, 3600)] == [2, 2, 3, 61]


def test_what_a_job_was_given_is_counted_by_host_and_type() -> None:
    places = given(DETAIL, "gpu:a100")

    assert len(places) == 11
    assert places[3:5] == ("n1/gpu7", "n2/gpu0")
    assert given("Nodes=n1 CPU_IDs=1 Mem=1 GRES=gpu:a100:2(IDX:N/A)", "gpu:a100") == (
        "n1/gpu-any0",
        "n1/gpu-any1",
    )
    assert given("Nodes=n1 CPU_IDs=1 Mem=1 GRES=gpu:a100_3g.40gb:0", "gpu:a100_3g.40gb") == ()


def test_row_that_somebodys_text_broke_is_left_out() -> None:
    table = "1|berth-a-g1|RUNNING|\n2|my|job|PENDING|\n3|x|\nnonsense\n"

    assert rows(table, 3) == [["1", "berth-a-g1", "RUNNING"]]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination",
            "no_association",
        ),
        ("sbatch: error: invalid partition specified: nope", "no_partition"),
        ("Requested node configuration is not available", "not_offered"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "over_limit",
        ),
        ("slurm_load_partitions: Unable to contact slurm controller (connect failure)", ""),
        ("squeue: error: If munged is up, restart with --num-threads=10", ""),
    ],
)
def test_refusal_is_told_from_silence(said: str, code: str) -> None:
    no = refusal("sbatch", said)

    assert (no.code if isinstance(no, BackendRefusedError) else "") == code


def test_job_is_submitted_as_its_holder_with_group_and_nothing_of_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(sbatch="17;t\n")

    job = backend(script).ensure(order(2))

    (words,) = script.asked
    assert (job.job, job.phase) == ("17", "waiting")
    assert words[0] == "/opt/slurm/bin/sbatch"
    assert {
        "--job-name=berth-l1-g1", "--dependency=singleton", "--gres=gpu:a100:2", "--uid=1001", "--gid=100",
        "--account=berth-vision", "--comment=p00l", "--export=NIL", "--no-requeue", "--time=61", "--nodes=1",
        "--cpus-per-task=8", "--mem=65536M",
    } <= set(words)  # fmt: skip
    assert quiet_environment({"PATH": "/bin", "SBATCH_PARTITION": "x", "BERTH_ENROL_TOKEN": "s"}) == {
        "PATH": "/bin"
    }


def test_agent_without_root_names_no_account_of_the_system() -> None:
    script = Script(sbatch="17")
    backend(script, SlurmSettings("gpu", "gpu", "t4", 16384, user="bob"), is_root=False).ensure(order(3))

    words = script.asked[0]
    assert "--gres=gpu:3" in words
    assert not [word for word in words if word.startswith(("--uid", "--gid", "--account"))]


@pytest.mark.parametrize("user", ["nobody-here", "root"])
def test_holder_without_an_account_submits_nothing(user: str) -> None:
    script = Script(sbatch="17")
    with pytest.raises(BackendRefusedError, match="no_account"):
        backend(script).ensure(order(user=user))

    assert script.asked == []


@pytest.mark.parametrize(
    "answers",
    [
        {"squeue": "<html>502 Bad Gateway</html>"},
        {"squeue": ProgramError("squeue did not answer within 15 s")},
        {
            "squeue": Done(
                1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
            )
        },
    ],
)
def test_garbage_and_silence_are_the_cluster_being_away_and_submit_nothing(answers: dict[str, str]) -> None:
    script = Script(sbatch="17", **answers)
    with pytest.raises(BackendAwayError):
        backend(script).ensure(order(may_exist=True))

    assert not any(words[0].endswith("sbatch") for words in script.asked)


def test_pool_is_counted_and_says_what_is_wrong_with_it() -> None:
    script = Script(
        scontrol="PartitionName=gpu State=DOWN TotalNodes=3",
        sinfo="n1|idle|gpu:a100:8|gpu:a100:3(IDX:0-2)|none|\nn2|down*|gpu:a100:8|gpu:a100:2(IDX:0-1)|power supply|\n"
        "n3|idle|(null)|gpu:0|none|\n",
    )

    facts = backend(script).facts()

    assert (facts.units, facts.away, facts.used, facts.most_on_one) == (16, 8, 3, 8)
    notes = dict(facts.notes)
    assert notes.keys() == {"partition_down", "hosts_away"}
    assert "n2 is down* (power supply)" in notes["hosts_away"]


def test_what_a_job_was_given_is_read_back_once_whatever_else_is_looked_for() -> None:
    columns = "RUNNING|None|bob|gpu=1|n1|100|200|p00l|"
    script = Script(squeue=f"1|berth-l1-g1|{columns}\n2|berth-l2-g1|{columns}\n", scontrol=DETAIL)
    cluster = backend(script)

    for names in (["berth-l1-g1", "berth-l2-g1"], ["berth-l1-g1"], ["berth-l1-g1", "berth-l2-g1"]):
        assert {job.units for job in cluster.observe(names)} == {11}
    assert sum("show" in words for words in script.asked) == 2

    script.answers["squeue"] = f"1|berth-l1-g1|{columns.replace('RUNNING', 'CANCELLED')}\n"
    cluster.observe(["berth-l1-g1"])
    script.answers["squeue"] = f"1|berth-l1-g1|{columns}\n"
    cluster.observe(["berth-l1-g1"])
    assert sum("show" in words for words in script.asked) == 3


def test_job_that_the_controller_forgot_is_looked_up_in_accounting() -> None:
    script = Script(
        squeue="", sacct="12|berth-l1-g1|CANCELLED by 1001|bob|100|160|p00l\n13|other|RUNNING|x|1|Unknown|\n"
    )

    (job,) = backend(script).observe(["berth-l1-g1"])

    assert (job.phase, job.code, job.started_at, job.ended_at) == ("over", "removed_by_other", 100, 160)
    assert "by 1001" in job.detail


def test_accounting_that_is_away_leaves_a_job_unknown() -> None:
    script = Script(squeue="", sacct=Done(1, "", "Unable to contact slurmdbd: Connection refused"))

    assert [job.phase for job in backend(script).observe(["berth-l1-g1"])] == ["unknown"]
