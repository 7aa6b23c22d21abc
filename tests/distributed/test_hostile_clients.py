"""What a driver with the key may do to a node and to its other drivers, and what it may not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import clusters
import numpy as np
import pytest
from hostile import WAIT_S, Driver, Message, Watched, conversation, numbered, play

import vksched as vs
from vksched.cluster.worker_process import ClusterWorker
from vksched.distributed.wire import json_payload, quota
from vksched.distributed.wire.stream import ConnectionClosed
from vksched.distributed.worker import server, transport
from vksched.distributed.worker.host_plan_executor import HostPlanExecutor
from vksched.distributed.worker.session import THREADS
from vksched.distributed.worker.transport import MAX_ECHOES
from vksched.distributed.worker.worker import PlanRunner
from vksched.plan.multi_host.host_plan_codec import HostPlanCodec

SPECS = Message("specs", {}, ask=True)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClusterWorker]:
    about = clusters.make_credentials(), "plain", ["cpu"]
    worker = ClusterWorker("node1", "127.0.0.1:0", *about, cache_folder=tmp_path)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def honest_messages(tmp_path_factory: pytest.TempPathFactory) -> list[Message]:
    """What an honest driver said to a node of that name."""
    about = clusters.make_credentials(), "plain", ["cpu"]
    folder = tmp_path_factory.mktemp("weights")
    worker = ClusterWorker("node1", "127.0.0.1:0", *about, cache_folder=folder)
    try:
        return conversation(worker)
    finally:
        worker.close()


@pytest.fixture
def watched(node: ClusterWorker) -> Iterator[Watched]:
    built = Watched(node)
    yield built
    built.close()


def prepared(honest_messages: list[Message]) -> list[Message]:
    """Return the messages up to the prepared plan."""
    (last,) = [at for at, each in enumerate(honest_messages) if each.kind == "prepare"]
    return honest_messages[: last + 1]


def test_what_an_honest_caller_says_can_be_repeated_and_leaves_nothing(
    node: ClusterWorker, watched: Watched, honest_messages: list[Message]
) -> None:
    for end in range(len(honest_messages) + 1):
        play(Driver(node.address), honest_messages[:end])
    assert watched.left() == []


def test_a_state_that_is_named_twice_is_refused_and_nothing_stays(
    node: ClusterWorker, watched: Watched
) -> None:
    array = {"dtype": "float32", "shape": [4], "uniform": False}
    fields = {"device": "cpu", "keys": ["s", "s"], "arrays": [array, array]}
    driver = Driver(node.address)
    answer = driver.answer_to(Message("add", fields, bytes(128), ask=True))
    assert answer is not None and "each once" in answer["text"]
    assert node._opened.devices[0].states.keys() == ()
    driver.close()
    assert watched.left() == []


def test_several_plans_of_one_number_are_one_and_nothing_of_them_stays(
    node: ClusterWorker,
    watched: Watched,
    honest_messages: list[Message],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All arrive before the first one has been read."""
    honest_messages, go_on = prepared(honest_messages), threading.Event()
    built, closed, read = list[int](), list[int](), HostPlanCodec.read
    init, close = HostPlanExecutor.__init__, HostPlanExecutor.close

    def slowly(*about: Any) -> Any:
        assert go_on.wait(WAIT_S)
        return read(*about)

    def noting(self: HostPlanExecutor, *about: Any, **more: Any) -> None:
        built.append(id(self))
        init(self, *about, **more)

    def noting_close(self: HostPlanExecutor) -> None:
        closed.append(id(self))
        close(self)

    monkeypatch.setattr(HostPlanCodec, "read", slowly)
    monkeypatch.setattr(HostPlanExecutor, "__init__", noting)
    monkeypatch.setattr(HostPlanExecutor, "close", noting_close)
    driver = Driver(node.address)
    play(driver, honest_messages[:-1], ends=False)
    numbers = {driver.send(honest_messages[-1]) for _ in range(5)}
    go_on.set()
    kinds = []
    for fields, _ in driver.answers():
        if fields.get("to") in numbers:
            numbers.discard(fields["to"])
            kinds.append(fields["kind"])
        if not numbers:
            break
    assert sorted(kinds) == ["prepare", "refused", "refused", "refused", "refused"]
    driver.close()
    assert watched.left() == []
    assert len(built) == 1 and closed == built


def test_a_host_prepares_a_number_once(monkeypatch: pytest.MonkeyPatch) -> None:
    host = PlanRunner([], None, None, vs.Trace(), 1.0)  # type: ignore[arg-type]

    class Forged:
        def close(self) -> None:
            return None

    def making(number: int, part: object, progress: object) -> Forged:
        with pytest.raises(vs.PlanError, match="expected a new plan, got 1"):
            host.prepare(1, part)  # type: ignore[arg-type]
        return Forged()

    monkeypatch.setattr(host, "_prepared_part", making)
    host.prepare(1, object())  # type: ignore[arg-type]
    with pytest.raises(vs.PlanError, match="expected a new plan, got 1"):
        host.prepare(1, object())  # type: ignore[arg-type]


def test_a_number_is_taken_until_all_that_the_plan_had_is_free(
    node: ClusterWorker,
    watched: Watched,
    honest_messages: list[Message],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest_messages, go_on, begun = prepared(honest_messages), threading.Event(), threading.Event()
    release_plan = PlanRunner.release_plan

    def slowly(self: PlanRunner, number: int) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        release_plan(self, number)

    driver, number = Driver(node.address), honest_messages[-1].fields["plan"]
    play(driver, honest_messages, ends=False)
    with monkeypatch.context() as patch:
        patch.setattr(PlanRunner, "release_plan", slowly)
        for _ in range(3):
            driver.send(Message("release_plan", {"plan": number}))
        assert begun.wait(WAIT_S)
        answer = driver.answer_to(honest_messages[-1])
        assert answer is not None and "expected the number of a new plan" in answer["text"]
        go_on.set()
        while node._server._sessions[driver.name]._plans:
            pass
    play(driver, honest_messages)
    assert watched.left() == []


def test_a_caller_that_asks_without_end_and_reads_nothing_ends_its_own_session(
    node: ClusterWorker, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota.Quota.__init__, "__defaults__", (20, quota.MAX_BYTES))
    driver, other = Driver(node.address), Driver(node.address)
    assert all(each.answer_to(SPECS) is not None for each in (driver, other))  # both are served
    before = threading.active_count()
    with pytest.raises(ConnectionClosed):
        for _ in range(10_000):
            driver.send(Message("echo", {}, bytes(20_000), ask=True))
            assert threading.active_count() <= before + THREADS
    assert other.answer_to(SPECS) is not None
    for each in (driver, other):
        each.close()
    assert watched.left() == []


def test_questions_that_wait_have_a_bounded_size_together(
    node: ClusterWorker, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota.Quota.__init__, "__defaults__", (quota.MAX_ASKED, 1000))
    driver = Driver(node.address)
    for size in (600, 1000, 400):  # each alone
        assert driver.answer_to(Message("echo", {}, bytes(size), ask=True)) is not None
    assert driver.answer_to(Message("echo", {}, bytes(1001), ask=True)) is None
    assert watched.left() == []


def test_a_document_of_too_many_lists_is_refused_before_it_is_parsed(
    node: ClusterWorker, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_payload, "MAX_CONTAINERS", 1000)
    text = b"[" + b"[]," * 2000 + b"[]]"
    for message in (
        Message("missing", {"plan": 1}, text, ask=True),
        Message("prepare", {"plan": 1, "hosts_bytes": len(text)}, text + b"{}", ask=True),
        Message("prepare", {"plan": 1, "hosts_bytes": 2}, b"{}" + text, ask=True),
    ):
        driver = Driver(node.address)
        answer = driver.answer_to(message)
        assert answer is not None and "at most 1000 lists and objects" in answer["text"]
        driver.close()
    assert watched.left() == []


# -- values and their senders ----------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[dict[str, ClusterWorker]]:
    about = clusters.make_credentials(), "plain", ["cpu"]
    built = {
        name: ClusterWorker(name, "127.0.0.1:0", *about, cache_folder=tmp_path / name)
        for name in ("node1", "node2")
    }
    yield built
    for each in built.values():
        each.close()


def test_values_are_taken_of_the_node_that_the_caller_means_and_of_nobody_who_has_its_name(
    pair: dict[str, ClusterWorker],
) -> None:
    """The impostor knows the key, the names of the driver and of the node, and another word."""
    x = np.ones((4, 4), np.float32)
    cluster = vs.Cluster(
        [node.address for node in pair.values()], clusters.make_credentials(), "plain"
    )
    with vs.Scheduler(["node1/cpu", "node2/cpu"], cluster=cluster) as sched:
        middle = vs.mul(vs.input("x", x.shape), 2.0, name="middle")
        out = vs.add(middle, 1.0, name="out")
        place = {"middle": "node1/cpu", "out": "node2/cpu"}
        run = sched.compile(out, placement=place)
        assert np.array_equal(run(x=x), 2 * x + 1)
        joined: Any = sched._preparing.opened.hosts
        driver = joined._workers.driver
        (session,) = pair["node2"]._server._sessions.values()
        (number,) = session._plans
        value = next(iter(session._transport._plans[number].awaited))
        fields = {"plan": number, "slot": 0, "sequence_number": 99, "node": value}
        other = joined._workers._pair(joined.hosts["node2"], joined.hosts["node2"])
        for word in ("", other):
            impostor = Driver(pair["node2"].address, "node", "node1", driver=driver, pair=word)
            assert impostor.answer_to(Message("echo", {}, b"x", ask=True)) is not None
            impostor.send(Message("value", fields, bytes(64)))
            assert list(impostor.answers()) == []  # it was sent away
            assert all(key.sequence_number != 99 for key in session._transport._runs)
        assert np.array_equal(run(x=3 * x), 6 * x + 1)


def test_no_two_nodes_know_the_word_of_another_pair(pair: dict[str, ClusterWorker]) -> None:
    cluster = vs.Cluster(
        [node.address for node in pair.values()], clusters.make_credentials(), "plain"
    )
    joined = cluster.join()
    try:
        first, second = joined.hosts.values()
        words = [joined._workers._pair(*each) for each in ((first, first), (second, second))]
        word = joined._workers._pair(first, second)
        assert joined._workers._pair(second, first) == word and word not in words
        assert joined._workers.hosts(first, ["node2"])["node2"][1] == word
    finally:
        joined.close()


def test_a_peer_that_reads_no_echoes_holds_one_thread_and_is_sent_away(
    node: ClusterWorker, watched: Watched
) -> None:
    driver = Driver(node.address)
    assert driver.answer_to(SPECS) is not None
    peer = Driver(node.address, "worker", "node2", driver=driver.name)
    before = threading.active_count()
    with pytest.raises(ConnectionClosed):
        for _ in range(100):
            peer.send(Message("echo", {}, bytes(1 << 20), ask=True))
            assert threading.active_count() <= before + 1
    assert driver.answer_to(SPECS) is not None  # nobody else was
    for each in (peer, driver):
        each.close()
    assert watched.left() == []


def test_echoes_of_a_peer_that_reads_them_are_answered(node: ClusterWorker) -> None:
    driver = Driver(node.address)
    assert driver.answer_to(SPECS) is not None
    peer = Driver(node.address, "worker", "node2", driver=driver.name)
    for _ in range(3 * MAX_ECHOES):
        assert peer.answer_to(Message("echo", {}, bytes(100), ask=True)) is not None
    for each in (peer, driver):
        each.close()


# -- what a node says of others --------------------------------------------------------------------


def reach_text(node: ClusterWorker, address: str) -> str:
    driver = Driver(node.address)
    fields = {"host": "node2", "hosts": {"node2": [address, "word"]}}
    answer = driver.answer_to(Message("reach", fields, ask=True))
    driver.close()
    assert answer is not None and answer["kind"] == "refused"
    return str(answer["text"])


def test_a_node_says_the_same_of_all_that_it_does_not_reach(
    node: ClusterWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody there, somebody else, somebody silent, no address, no node of that name."""
    monkeypatch.setattr(transport, "CONNECT_S", 0.2)
    closed, speaks = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    places = [f"127.0.0.1:{each.getsockname()[1]}" for each in (closed, speaks)]
    closed.close()

    def talk() -> None:
        with suppress(OSError):
            own, _ = speaks.accept()
            own.sendall(b"SSH-2.0-OpenSSH_9.6\r\n" * 8)
            own.close()

    thread = threading.Thread(target=talk)
    thread.start()
    texts = {reach_text(node, place) for place in (*places, "nowhere", node.address)}
    assert len(texts) == 1 and "node2 cannot be reached from node1" in texts.pop()
    speaks.close()
    thread.join()


def test_a_node_with_a_list_of_peers_connects_to_these_alone(tmp_path: Path) -> None:
    about = clusters.make_credentials(), "plain", ["cpu"]
    there = socket.create_server(("127.0.0.1", 0))
    there.settimeout(0.05)
    place = f"127.0.0.1:{there.getsockname()[1]}"
    for peers, came in ((["10.0.0.0/8"], False), ([place], True)):
        worker = ClusterWorker("node1", "127.0.0.1:0", *about, cache_folder=tmp_path, peers=peers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vksched.distributed.wire.tls.HANDSHAKE_S", 0.05)
            text = reach_text(worker, place)
        try:
            there.accept()[0].close()
            assert came
        except TimeoutError:
            assert not came
        assert "cannot be reached from node1: try whether" in text
        worker.close()
    there.close()


# -- connections -----------------------------------------------------------------------------------


def test_callers_of_one_name_do_not_pile_up(
    node: ClusterWorker, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that connects again waits for what the one before had; only the last one does."""
    first = Driver(node.address, driver="one")
    assert first.answer_to(SPECS) is not None
    doors = lambda: sum(each.name == "vksched-door" for each in threading.enumerate())  # noqa: E731
    again = [Driver(node.address, driver="one") for _ in range(20)]
    until_s = time.monotonic() + WAIT_S
    while doors() > 1 and time.monotonic() < until_s:
        pass
    assert doors() == 1
    first.close()
    assert sum(each.answer_to(SPECS) is not None for each in again) == 1
    for each in again:
        each.close()
    assert watched.left() == []


def test_a_node_has_so_many_callers_and_no_more(
    node: ClusterWorker, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_DRIVERS", 3)
    drivers = [Driver(node.address) for _ in range(5)]
    answered = [each.answer_to(SPECS) is not None for each in drivers]
    assert sum(answered) == 3
    for each in drivers:
        each.close()
    assert watched.left() == []
    late = Driver(node.address)
    assert late.answer_to(SPECS) is not None
    late.close()


def test_plans_of_a_caller_are_counted(
    node: ClusterWorker,
    watched: Watched,
    honest_messages: list[Message],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vksched.distributed.worker.session.MAX_PLANS", 2)
    monkeypatch.setattr("vksched.distributed.worker.weight_registry.MAX_PLANS", 2)
    driver, of_plan = Driver(node.address), ("missing", "weight", "prepare")
    play(
        driver, [each for each in prepared(honest_messages) if each.kind not in of_plan], ends=False
    )
    for plan in range(3):
        own = numbered([each for each in honest_messages if each.kind in of_plan], plan)
        found = [driver.answer_to(each) for each in own]
        kinds = {each["kind"] for each in found if each is not None}
        assert len(kinds) and ("refused" in kinds) == (plan == 2)
    driver.close()
    assert watched.left() == []


def test_runs_of_a_caller_are_counted(
    node: ClusterWorker,
    watched: Watched,
    honest_messages: list[Message],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a thread, of which a process has only so many."""
    (start, *_) = [each for each in honest_messages if each.kind == "start"]
    for most, kind in ((0, "failed"), (1, "value")):
        monkeypatch.setattr("vksched.distributed.worker.worker.MAX_RUNS", most)
        driver = Driver(node.address)
        play(driver, prepared(honest_messages), ends=False)
        driver.send(start)
        heard = next(fields for fields, _ in driver.answers() if "slot" in fields)
        assert heard["kind"] == kind
        assert kind == "value" or "less than 0 runs under way" in heard["text"]
        driver.close()
    assert watched.left() == []
