"""CPU lists in text, and how the CPUs of a machine are shared out among slots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.run.cpusets import BadCpuList, divide, is_list, listed, parse, unused

#: Two sockets of 16 cores with two threads each, numbered as Linux does: the second threads after all first ones.
NODES = {0: frozenset([*range(16), *range(32, 48)]), 1: frozenset([*range(16, 32), *range(48, 64)])}
CORES = {cpu: cpu % 32 for cpu in range(64)}
ALL = tuple(range(64))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("8,0-1", (0, 1, 8)), (" 1 - 2 , 5\n", (1, 2, 5)), ("3-3", (3,))],
)
def test_a_list_as_the_kernel_writes_it(text: str, cpus: tuple[int, ...]) -> None:
    assert parse(text) == cpus


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("", "names no CPU", "for example 0-3"),
        ("3-1", "3-1 counts down", "write 1-3"),
        ("0-3,2", "names CPU 2 twice", "write 0-3"),
        ("1,,2", '"" is neither', "numbers from 0"),
        ("0,2,", '"" is neither', "write 0,2"),
        ("-1", '"-1" is neither', "numbers from 0"),
        ("0–3", "is neither", "write 0-3"),
        ("0-7:2", "is neither", "numbers from 0"),
        ("0-99999", "CPU 99999 is more than any machine has", "from 0 to 8191"),
        ("9" * 400, "is neither", "numbers from 0"),
    ],
)
def test_what_is_no_list_says_what_to_write(text: str, says: str, hint: str) -> None:
    with pytest.raises(BadCpuList) as caught:
        parse(text)
    assert says in str(caught.value)
    assert hint in caught.value.suggestion


@given(st.sets(st.integers(0, 8191), min_size=1))
def test_a_list_is_read_as_it_is_written(cpus: set[int]) -> None:
    assert parse(listed(cpus)) == tuple(sorted(cpus))


@given(st.text(alphabet="0123456789-–, x", max_size=12))
def test_any_text_is_a_list_or_says_why_not(text: str) -> None:
    if is_list(text):
        assert parse(listed(parse(text))) == parse(text)
    else:
        with pytest.raises(BadCpuList) as caught:
            parse(text)
        assert caught.value.suggestion


def shares(near: Sequence[frozenset[int] | None], parts: int) -> list[str]:
    return [listed(cpus) for cpus in divide(ALL, NODES, near, parts, CORES)]


def test_each_gpu_gets_whole_cores_of_its_own_socket() -> None:
    near = [NODES[1], NODES[0], NODES[1], NODES[0]]
    assert shares([*near], 4) == ["16-23,48-55", "0-7,32-39", "24-31,56-63", "8-15,40-47"]


def test_near_comes_before_many_and_shares_are_equal() -> None:
    assert shares([NODES[0]] * 3 + [NODES[1]], 4) == ["0-4,32-36", "5-9,37-41", "10-14,42-46", "16-20,48-52"]
    assert listed(unused(ALL, divide(ALL, NODES, [NODES[0]] * 2, 2, CORES))) == "16-31,48-63"


def test_without_gpus_the_slots_are_spread_over_the_nodes() -> None:
    assert shares([], 2) == ["0-15,32-47", "16-31,48-63"]
    assert shares([], 4) == ["0-7,32-39", "16-23,48-55", "8-15,40-47", "24-31,56-63"]
    assert shares([], 1) == ["0-63"]


def test_fewer_slots_than_nodes_get_several_nodes_each() -> None:
    quarters = {node: range(16 * node, 16 * node + 16) for node in range(4)}
    assert [listed(one) for one in divide(ALL, quarters, [], 2)] == ["0-31", "32-63"]


def test_a_gpu_that_is_near_to_several_nodes_leaves_the_fuller_one_alone() -> None:
    quarters = {node: range(16 * node, 16 * node + 16) for node in range(4)}
    sockets = [range(32), range(32), range(32, 64), range(32, 64)]
    assert [listed(one) for one in divide(ALL, quarters, sockets, 4)] == ["0-15", "16-31", "32-47", "48-63"]


def test_where_nodes_are_not_told_what_is_near_is_one() -> None:
    assert [listed(one) for one in divide(range(8), {}, [range(4, 8), None], 2)] == ["4-7", "0-3"]


def test_who_may_go_anywhere_leaves_a_gpu_its_node() -> None:
    nodes = {0: range(4), 1: range(4, 8)}
    assert [listed(one) for one in divide(range(8), nodes, [None, range(4)], 2)] == ["4-7", "0-3"]


def test_a_slot_that_is_alone_has_all_whatever_is_near() -> None:
    assert shares([NODES[1]], 1) == ["0-63"]


def test_shares_are_equal_where_cores_are_not() -> None:
    assert [listed(one) for one in divide(range(4), {}, [], 2, {0: 0, 1: 0, 2: 0, 3: 3})] == ["0-1", "2-3"]


def test_threads_of_a_core_part_only_where_cores_are_too_few() -> None:
    cores = {0: 0, 1: 1, 2: 0, 3: 1}
    assert [listed(one) for one in divide(range(4), {}, [], 2, cores)] == ["0,2", "1,3"]
    assert [listed(one) for one in divide(range(4), {}, [], 4, cores)] == ["0", "2", "1", "3"]


def test_a_node_with_too_few_cpus_is_not_waited_for() -> None:
    """Only one CPU of the GPUs' node may be used by this process."""
    got = divide([0, 1, 2, 3, 40], {0: range(32), 1: range(32, 64)}, [range(32, 64)] * 2, 2)
    assert [listed(one) for one in got] == ["0-1", "2-3"]


@pytest.mark.parametrize("parts", [0, 3])
def test_more_slots_than_cpus_are_refused(parts: int) -> None:
    with pytest.raises(ValueError, match="2 CPUs can't be shared out"):
        divide([0, 5], {}, [], parts)


@st.composite
def machines(
    draw: st.DrawFn,
) -> tuple[list[int], dict[int, frozenset[int]], list[frozenset[int] | None], int, dict[int, int]]:
    """Any CPUs, some of them usable, in nodes that may leave some out, with threads or none."""
    total = draw(st.integers(1, 48))
    usable = draw(st.lists(st.integers(0, total - 1), min_size=1, unique=True))
    node_of = draw(st.lists(st.integers(-1, 3), min_size=total, max_size=total))
    nodes = {n: frozenset(cpu for cpu in range(total) if node_of[cpu] == n) for n in range(4)}
    threads = draw(st.integers(1, 2))
    cores = {cpu: cpu % max(1, total // threads) for cpu in range(total)} if draw(st.booleans()) else {}
    parts = draw(st.integers(1, len(usable)))
    sets = st.one_of(st.none(), st.frozensets(st.integers(0, total)), st.sampled_from([*nodes.values()]))
    near = draw(st.lists(sets, max_size=parts))
    return usable, {n: cpus for n, cpus in nodes.items() if cpus}, near, parts, cores


@given(machines())
def test_shares_are_equal_apart_and_never_empty(
    machine: tuple[list[int], dict[int, frozenset[int]], list[frozenset[int] | None], int, dict[int, int]],
) -> None:
    usable, nodes, near, parts, cores = machine
    got = divide(usable, nodes, near, parts, cores)
    assert len(got) == parts
    assert len({len(one) for one in got}) == 1
    assert got[0]
    assert not any(set(one) & set(other) for one, other in combinations(got, 2))
    assert {cpu for one in got for cpu in one} | set(unused(usable, got)) == set(usable)
    assert got == divide(usable[::-1], nodes, near, parts, cores), "the order that they are told in means nothing"


@given(st.integers(1, 64), st.integers(1, 64))
def test_of_one_node_no_more_is_left_over_than_equal_shares_must(cpus: int, parts: int) -> None:
    if parts <= cpus:
        assert len(unused(range(cpus), divide(range(cpus), {0: range(cpus)}, [], parts))) == cpus % parts


@given(
    st.integers(1, 4),
    st.integers(4, 12),
    st.integers(1, 2),
    st.lists(st.integers(0, 3), min_size=2, max_size=4),
    st.booleans(),
)
def test_each_share_is_of_whole_cores_in_a_row_of_the_node_that_is_near(
    sockets: int, each: int, threads: int, homes: list[int], told: bool
) -> None:
    """Nodes with at least a core for every slot."""
    count = sockets * each
    cores = {cpu: cpu % count for cpu in range(count * threads)}
    nodes = {n: frozenset(cpu for cpu, core in cores.items() if core // each == n) for n in range(sockets)}
    near = [nodes[home % sockets] for home in homes]
    got = divide(cores, nodes if told else {}, near, len(near), cores)
    for cpus, node in zip(got, near, strict=True):
        own = sorted({cores[cpu] for cpu in cpus})
        assert set(cpus) <= node
        assert own == list(range(own[0], own[0] + len(own)))
        assert set(cpus) == {cpu for cpu, core in cores.items() if core in own}
