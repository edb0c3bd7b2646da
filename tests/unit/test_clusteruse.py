"""The keys launcher and cluster of a sweep file: what they mean, what is wrong with them, and what they are planned
for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import config, plan
from orchestrator.config import ClusterUse
from orchestrator.definition.clusteruse import MOST, cluster_text
from orchestrator.definition.inputs import PromptSet
from orchestrator.errors import InputError, Problem
from orchestrator.run.checks import machine_problems
from orchestrator.run.machines import elsewhere, machine_for
from orchestrator.run.prepare import describe, survey
from orchestrator.view.memory import plan_lines
from orchestrator.view.planned import render
from tests.unit.plans import MODEL
from tests.unit.rundirs import VLLM
from tests.unit.test_config import BASE, parse, problems, the_problem
from tests.unit.test_memory_view import sized
from tests.unit.test_schema import fits_schema

ALL = (
    "launcher: ray\ncluster: {slots: 4, gpus: 2, cpus: 8, memory_mib: 65536, time_limit: 1h30m, options: [big=1], "
    "address: '10.0.0.1:6379', listen: 'tcp://10.0.0.1:7777', python: /opt/airlock/bin/python, "
    "ray_python: python3.12, silence_s: 5, attempts: 1}\n"
)


def cluster(text: str, *overrides: str) -> ClusterUse:
    return parse(f"launcher: slurm\ncluster: {text}\n", *overrides).cluster


def told(text: str, launcher: str = "slurm") -> str:
    found = the_problem(f"launcher: {launcher}\ncluster:\n  {text}\n")
    assert found.where == "s.yaml:7"
    return f"{found.key}: {found.message} ({found.suggestion})"


def planned_for(text: str, *overrides: str, base: str = BASE) -> tuple[list[str], list[str]]:
    """Problems and warnings of what the file asks of the cluster."""
    found: list[Problem] = []
    said: list[str] = []
    draft = config.draft(base + text, "s.yaml", overrides)
    machine_for(draft, found, said.append)
    return [str(problem) for problem in (*draft.problems, *found)], said


# --- what it means --------------------------------------------------------------


def test_without_it_workers_are_local() -> None:
    assert (parse().launcher, parse().cluster) == ("local", ClusterUse())
    assert parse("launcher: local\ncluster:\n") == parse()
    assert parse("cluster: {}\n") == parse()


def test_every_key_has_its_value() -> None:
    got = parse(ALL)
    assert got.launcher == "ray"
    assert got.cluster == ClusterUse(
        slots=4,
        gpus=2,
        cpus=8,
        memory_mib=65536,
        time_limit_s=5400.0,
        options=("big=1",),
        address="10.0.0.1:6379",
        listen="tcp://10.0.0.1:7777",
        python="/opt/airlock/bin/python",
        ray_python="python3.12",
        silence_s=5.0,
        attempts=1,
    )
    assert parse("launcher: slurm\n").cluster == cluster("{time_limit: null, cpus: null}") == ClusterUse()


def test_times_are_read_as_those_of_stop_after() -> None:
    assert cluster("{time_limit: 8h}").time_limit_s == 28800.0
    assert cluster("{time_limit: 90}").time_limit_s == 90.0


def test_all_of_it_can_be_set_on_the_command_line() -> None:
    got = parse(
        "", "launcher=slurm", "cluster.gpus=2", "cluster.time_limit=8h", "cluster.options=--qos=a,--partition=b"
    )
    assert got.launcher == "slurm"
    assert got.cluster == ClusterUse(gpus=2, time_limit_s=28800.0, options=("--qos=a", "--partition=b"))
    one = parse("", "launcher=slurm", 'cluster.options="--exclude=a,b"')
    assert one.cluster.options == ("--exclude=a,b",)
    back = parse("launcher: slurm\ncluster: {gpus: 2}\n", "launcher=local", "cluster=")
    assert (back.launcher, back.cluster) == ("local", ClusterUse())


def test_neither_changes_a_point_or_the_plan_and_both_are_kept_with_it() -> None:
    prompts = PromptSet("set", (), templated=False)
    plain, other = (plan.build(parse(extra), MODEL, prompts, "cpu", lengths_known=False) for extra in ("", ALL))
    assert plain.digest == other.digest
    assert [p.id for p in plain.points] == [p.id for p in other.points]
    assert plan.changes(plain, other) == []
    assert (plain.launcher, plain.cluster) == ("local", ClusterUse())
    assert (other.launcher, other.cluster) == ("ray", parse(ALL).cluster)
    assert msgspec.json.decode(msgspec.json.encode(other), type=plan.Plan) == other


def test_a_plan_of_before_ran_on_its_own_machine() -> None:
    prompts = PromptSet("set", (), templated=False)
    whole = msgspec.to_builtins(plan.build(parse(), MODEL, prompts, "cpu", lengths_known=False))
    del whole["launcher"], whole["cluster"]
    assert msgspec.convert(whole, plan.Plan).launcher == "local"


def test_the_plan_says_where_the_workers_run() -> None:
    prompts = PromptSet("set", (), templated=False)

    def lines(extra: str) -> list[str]:
        return list(render(plan.build(parse(extra), MODEL, prompts, "cpu", lengths_known=False)))

    assert [line for line in lines(ALL) if line not in lines("")] == [
        "workers on Ray: 4 allocations at once, each with 2 GPUs, 8 CPUs, 64.0 GiB of memory, 1h30m, big=1",
        "which GPUs and how much memory the nodes have is known once workers run there",
    ]
    assert cluster_text("slurm", ClusterUse()) == "Slurm: 1 allocation at a time, with no GPU"


# --- mistakes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slots: 0", "cluster.slots: must be a whole number, 1 or more and at most 1024, not 0"),
        ("gpus: -1", "cluster.gpus: must be a whole number, 0 or more"),
        ("gpus: two", 'cluster.gpus: must be a whole number, 0 or more and at most 1024, not the text "two"'),
        ("cpus: 0", "cluster.cpus: must be a whole number, 1 or more and at most 8192, or null, not 0 (write null"),
        ("memory_mib: 64GiB", "(write 65536, in MiB)"),
        ("partition: gpu", "cluster.partition: cluster has no such key (did you mean options?)"),
        ("memory: 64GiB", "cluster.memory: cluster has no such key (did you mean memory_mib?)"),
        ("time_limit: 8 parsecs", "cluster.time_limit: must be a time, not"),
        ("time_limit: 8:30", "(write 8h30m, or 8m30s)"),
        ("time_limit: 0", "cluster.time_limit: must be more than no time"),
        ("time_limit_s: 60", "cluster.time_limit_s: cluster has no such key (did you mean time_limit?)"),
        ("options: --partition=gpu", "(write [--partition=gpu])"),
        ("options: [7]", "cluster.options[0]: must be text, not 7 (write it in quotes)"),
        ("listen: 10.0.0.1", 'cluster.listen: the text "10.0.0.1" is no TCP endpoint (write tcp://ADDRESS'),
        ("listen: tcp://login", "needs an address of this machine in figures"),
        ("listen: tcp://0.0.0.0", "is no address that a worker can dial"),
        (
            "listen: tcp://10.0.0.1:0",
            "has no port between 1 and 65535 (write tcp://ADDRESS or tcp://ADDRESS:PORT, or",
        ),
        ("python: venv/bin/python", "cluster.python: must be a whole path, or a name to look up on the node"),
        ("silence_s: 0", "cluster.silence_s: must be a number, more than 0"),
        ("silence_s: 2m", "(write 120, in seconds)"),
        ("attempts: 0", "cluster.attempts: must be a whole number, 1 or more"),
        ("address: auto", "cluster.address: is for Ray; Slurm's commands know their cluster (leave it out)"),
        ("ray_python: python3", "cluster.ray_python: is for Ray; Slurm needs no library (leave it out)"),
    ],
)
def test_a_mistake_is_told_once_with_what_to_write(text: str, says: str) -> None:
    assert says in told(text)


def test_what_is_for_ray_alone_is_checked_there() -> None:
    assert "cluster.address: must be text or null" in told("address: ''", "ray")
    assert "cluster.ray_python: must be a whole path, or a name" in told("ray_python: venv/python", "ray")


@pytest.mark.parametrize(
    ("given", "meant"), [("slrum", "slurm"), ("Ray", "ray"), ("sbatch", "slurm"), ("locl", "local")]
)
def test_an_unknown_launcher_is_told_with_the_nearest(given: str, meant: str) -> None:
    found = the_problem(f"launcher: {given}\n")
    assert (found.where, found.key, found.suggestion) == ("s.yaml:5", "launcher", f"did you mean {meant}?")
    assert found.message.startswith("must be one of local, ray, slurm, not")


@pytest.mark.parametrize("given", ["kubernetes", "null", "[slurm]", "{slurm: 1}", "7"])
def test_what_goes_with_an_unknown_launcher_is_not_doubted(given: str) -> None:
    found = the_problem(f"launcher: {given}\ncluster: {{gpus: 1}}\ndevices: {{slots: 2}}\n")
    assert found.key.startswith("launcher")


def test_what_goes_with_a_misspelt_one_is() -> None:
    found = problems("launcher: slrum\ncluster: {address: auto}\n")
    assert [p.key for p in found] == ["launcher", "cluster.address"]


def test_a_cluster_without_a_launcher_is_refused() -> None:
    for text in ("cluster:\n  gpus: 1\n", "cluster: {gpus: 1}\nlauncher: local\n"):
        found = the_problem(text)
        assert found.key == "cluster"
        assert found.message == "says what allocations of a cluster have, and launcher is local"
        assert found.suggestion == "write launcher: slurm or ray, or leave cluster out"
    assert the_problem("", "cluster.gpus=1").where == "--set cluster.gpus=1"


@pytest.mark.parametrize("launcher", ["slurm", "ray"])
@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("use: [0, 1]", "write cluster: {gpus: 2} instead"),
        ("cpus: [0-3, 4-7]", "write cluster: {slots: 2, cpus: …} instead"),
        ("slots: 3", "write cluster: {slots: 3} instead"),
        ("exclusive: true", "leave it out; cluster: {slots: 1} is one worker in all"),
        ("share_cpus: true", "leave it out"),
        ("standby: on", "leave it out"),
        ("standby: off", "leave it out"),
    ],
)
def test_devices_of_this_machine_have_no_meaning_there(launcher: str, text: str, suggestion: str) -> None:
    found = the_problem(f"launcher: {launcher}\ndevices:\n  {text}\n")
    assert (found.where, found.key, found.suggestion) == ("s.yaml:7", f"devices.{text.split(':')[0]}", suggestion)
    assert found.message.startswith(f"has no meaning with launcher {launcher}: ")


def test_devices_that_say_nothing_do_no_harm() -> None:
    assert parse("launcher: slurm\ndevices: {use: null, slots: null, exclusive: false, standby: auto}\n")


def test_all_mistakes_are_told_at_once_each_at_its_own_line() -> None:
    text = (
        "launcher: slurm\ncluster:\n  gpus: x\n  listen: here\n  time_limit: soon\n  address: a\ndevices:\n  slots: 2\n"
    )
    assert [(p.where, p.key) for p in problems(text)] == [
        ("s.yaml:7", "cluster.gpus"),
        ("s.yaml:8", "cluster.listen"),
        ("s.yaml:9", "cluster.time_limit"),
        ("s.yaml:10", "cluster.address"),
        ("s.yaml:12", "devices.slots"),
    ]


@given(
    st.sampled_from(["local", "slurm", "ray", "x", 1, None]),
    st.dictionaries(
        st.sampled_from([*ClusterUse.__struct_fields__, "time_limit", "x"]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-5, 9000)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.sampled_from(["8h", "tcp://1.2.3.4", "tcp://", "--partition=gpu", "a=1", "", "/x", "a/b"]),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=5,
        ),
    ),
)
def test_whatever_stands_there_is_taken_or_told(launcher: object, section: dict[str, object]) -> None:
    text = f"launcher: {launcher!r}\ncluster: {section!r}\n".replace("None", "null")
    found = config.draft(BASE + text, "s.yaml")
    assert all(p.key.split(".")[0] in ("launcher", "cluster") for p in found.problems)
    assert (found.config is None) == bool(found.problems)
    if found.config is not None:
        told_s = section.get("time_limit")
        assert (found.config.cluster.time_limit_s is None) == (told_s is None)
        assert set(section) <= {*ClusterUse.__struct_fields__, "time_limit"} - {"time_limit_s"}


# --- the schema -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (ALL, True),
        ("launcher: slurm\ncluster: {time_limit: 90, options: []}\n", True),
        ("launcher: pbs\n", False),
        ("launcher: slurm\ncluster: {gpus: -1}\n", False),
        ("launcher: slurm\ncluster: {time_limit_s: 90}\n", False),
        ("launcher: slurm\ncluster: {time_limit: [8]}\n", False),
        ("launcher: slurm\ncluster: {options: --partition=gpu}\n", False),
        ("launcher: slurm\ncluster: {silence_s: long}\n", False),
    ],
)
def test_the_schema_says_so_too(text: str, right: bool) -> None:
    assert fits_schema(BASE + text) is right
    if right:
        parse(text)
    else:
        problems(text)


# --- what the cluster would not take ----------------------------------------------


def test_words_that_the_cluster_must_not_get_are_refused_each_at_its_place() -> None:
    found, _ = planned_for("launcher: slurm\ncluster:\n  options:\n  - --qos=a\n  - --wait\n  - partition=gpu\n")
    assert found == [
        "s.yaml:9: cluster.options[1]: '--wait' can't be given: submitting does not wait",
        "s.yaml:10: cluster.options[2]: 'partition=gpu' is no option of sbatch; write both parts in one word, as in "
        "--partition=gpu",
    ]
    found, _ = planned_for("launcher: ray\ncluster: {options: [big=1, GPU=1, --qos=a b]}\n")
    assert [one.split(": ")[1] for one in found] == ["cluster.options[1]", "cluster.options[2]"]


def test_other_gpus_than_those_of_the_allocation_are_refused_and_their_type_is_not() -> None:
    options = "--gres=gpu:a100:1, --gpus=1, -G8"
    alone, _ = planned_for(f"launcher: slurm\ncluster: {{options: [{options}]}}\n")
    assert [one.split(": ")[1] for one in alone] == [f"cluster.options[{n}]" for n in range(3)]
    assert "'--gres=gpu:a100:1' comes to gpu:1, and cluster.gpus is 0" in alone[0]
    with_one, _ = planned_for(f"launcher: slurm\ncluster: {{gpus: 1, options: [{options}]}}\n")
    assert with_one == alone[1:]


WIDE = BASE.replace("hf_sdpa", "vllm_eager") + "matrix:\n  tensor_parallel_size: [1, 4]\n"


def test_a_worker_needs_no_more_gpus_than_an_allocation_has() -> None:
    found, _ = planned_for("launcher: slurm\ncluster: {gpus: 2}\n", base=WIDE)
    assert found == [
        "s.yaml:6: matrix.tensor_parallel_size: needs 4 GPUs, 2 of each allocation are asked for (cluster.gpus)"
    ]
    assert planned_for("launcher: slurm\ncluster: {gpus: 4}\n", base=WIDE) == ([], [])
    assert planned_for("launcher: slurm\n", base=WIDE) == ([], [])
    product = WIDE + "  pipeline_parallel_size: [1, 2]\n"
    assert "needs 8 GPUs" in planned_for("launcher: ray\ncluster: {gpus: 4}\n", base=product)[0][0]


def test_a_number_of_gpus_that_cannot_be_read_refuses_no_method() -> None:
    draft = config.draft(WIDE + "launcher: slurm\ncluster: {gpus: many}\n", "s.yaml")
    found: list[Problem] = []
    machine = machine_for(draft, found, list[str]().append)
    assert (machine.kind, draft.cluster.gpus, found) == ("cuda", MOST, [])


def test_what_nobody_may_expect_is_said() -> None:
    _, said = planned_for("launcher: slurm\ncluster: {gpus: 3, time_limit: 90s}\n")
    assert said == [
        "warning: cluster.gpus is 3, but a worker of this sweep uses 1 at most: 2 GPUs would be idle",
        "warning: cluster.time_limit is 1m30s; Slurm counts in minutes, and gets 2m",
    ]
    assert planned_for("launcher: ray\ncluster: {gpus: 1, time_limit: 90s}\n") == ([], [])
    _, said = planned_for("launcher: slurm\ncluster: {gpus: 1, time_limit: 30}\n")
    assert said[1:] == [
        "warning: Slurm asks a job to leave as much as 1m before its end, so 1m leaves no time for work; "
        "a number without a unit is seconds, half an hour is 30m"
    ]
    assert planned_for("launcher: slurm\ncluster: {gpus: 1, time_limit: 2m}\n") == ([], [])


# --- planned for the nodes, whatever this machine is -----------------------------------


def test_the_machine_is_what_was_asked_for() -> None:
    bare = elsewhere("slurm", ClusterUse())
    assert (bare.kind, bare.devices, bare.cpus, bare.memory_bytes) == ("cpu", (), 1, None)
    full = elsewhere("ray", ClusterUse(gpus=2, cpus=8, memory_mib=1024))
    assert (full.kind, full.devices, full.cpus, full.memory_bytes) == ("cuda", (), 8, 1 << 30)
    assert full.notes == ("workers run on allocations of Ray; what the nodes have is not known here",)


def test_no_method_is_refused_for_gpus_that_this_machine_lacks() -> None:
    text = BASE.replace("hf_sdpa", "vllm_fa, hf_sdpa")

    def refused(cluster: str) -> Sequence[Problem]:
        draft = config.draft(text + f"launcher: slurm\ncluster: {cluster}\n", "s.yaml")
        return machine_problems(draft, elsewhere("slurm", draft.cluster))

    assert refused("{gpus: 1}") == []
    assert ["vllm_fa" in str(problem) for problem in refused("{gpus: 0}")] == [True]


def test_no_memory_of_this_machine_is_measured_against() -> None:
    built = sized((VLLM,))
    (line,) = list(plan_lines(built, (), None))[2:]
    assert line.endswith("; of how much is not known")
    there = msgspec.structs.replace(built, launcher="slurm")
    (line,) = list(plan_lines(there, (), 1 << 40))[2:]
    assert "of an allocation" in line


def sweep_file(folder: Path, text: str) -> Path:
    file = folder / "s.yaml"
    file.write_text("name: a\nmodel: scripted\nprompts: [one, two]\nmethods: [scripted]\n" + text)
    return file


def test_a_sweep_is_surveyed_and_described_for_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_HOME", str(tmp_path / "home"))
    said: list[str] = []
    text = "launcher: slurm\ncluster: {gpus: 1, listen: 'tcp://127.0.0.1'}\n"
    ground = survey(sweep_file(tmp_path, text), (), said.append)
    assert (ground.machine.kind, ground.machine.devices, ground.cpus, said) == ("cuda", (), None, [])
    assert "workers on Slurm: 1 allocation at a time, with 1 GPU" in list(describe(ground, said.append))
    with pytest.raises(InputError, match="nowhere"):
        list(describe(ground, said.append, "tcp://nowhere"))
    local = survey(sweep_file(tmp_path, ""), (), said.append)
    assert local.cpus == local.machine.cpus


def test_a_survey_tells_of_the_cluster_beside_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_HOME", str(tmp_path / "home"))
    file = sweep_file(tmp_path, "launcher: slurm\ncluster:\n  options: [--wait]\n  gpus: no\n")
    with pytest.raises(InputError) as caught:
        survey(file, (), list[str]().append)
    assert [p.key for p in caught.value.problems] == ["cluster.options[0]", "cluster.gpus"]
