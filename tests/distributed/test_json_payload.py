"""Documents take no more memory than they are worth, whoever sends how many of them."""

from __future__ import annotations

import json
import threading
import tracemalloc

import pytest

from vksched.common.schema import SchemaError, Whole
from vksched.distributed.wire import json_payload
from vksched.distributed.wire.json_payload import Budget, document_of, parsed_bytes

WAIT_S = 30.0


def test_a_document_is_what_its_schema_says_or_refused() -> None:
    assert document_of(b'{"a":[1,2]}', dict[str, list[Whole]], "a table") == {"a": [1, 2]}
    for text, message in (
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"", "no JSON"),
        (b'{"a":["1"]}', "a whole number"),
        (b"[" * 100_000, "no JSON"),
    ):
        with pytest.raises(SchemaError, match=message):
            document_of(text, dict[str, list[Whole]], "a table")


def test_lists_and_objects_are_counted_before_anything_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = b"[" + b"[],{}," * (1 << 17) + b"[]]"
    monkeypatch.setattr(json_payload, "MAX_CONTAINERS", 1 << 16)
    tracemalloc.start()
    try:
        with pytest.raises(SchemaError, match="at most 65536 lists and objects in it, got 262146"):
            document_of(text, list[list[Whole]], "it")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 16


@pytest.mark.parametrize("piece", ["[],", "{},", '"ab",', "1.5,", "-70000,", '{"a":1},', "null,"])
def test_no_document_takes_much_more_memory_than_is_counted(piece: str) -> None:
    text = ("[" + piece * 20_000 + "0]").encode()
    tracemalloc.start()
    try:
        built = json.loads(text)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(built) == 20_001
    assert taken_bytes < 2 * parsed_bytes(text, "it")


def test_documents_that_are_parsed_at_once_share_a_budget_in_their_order() -> None:
    budget, order, threads = Budget(100), list[int](), list[threading.Thread]()
    go_on = threading.Event()

    def work(number: int, size: int) -> None:
        with budget.taken(size):
            order.append(number)
            assert go_on.wait(WAIT_S)

    for number, size in enumerate((60, 1000, 10)):  # the last would fit beside the first
        threads.append(threading.Thread(target=work, args=(number, size)))
        threads[-1].start()
        while number == 0 and not order:
            pass
        while number == 1 and not budget._line._held:
            pass
    threads[-1].join(0.02)
    assert order == [0] and budget.taken_bytes == 60
    go_on.set()
    for each in threads:
        each.join(WAIT_S)
    assert order[1:] == [1, 2] and budget.taken_bytes == 0
