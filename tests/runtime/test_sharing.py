"""What the native modules share and copy: the pipelines of a device, words between buffers, and
memory that the host sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
from vksched.common.dtypes import TensorType
from vksched.common.errors import DeviceError
from vksched.plan.types.plan_types import Span
from vksched.runtime.vulkan import binding
from vksched.runtime.vulkan.context import Context, Recording, Wanted
from vksched.runtime.vulkan.shaders import load_shader
from vksched.runtime.vulkan.staging import download, upload, write_new
from vksched.runtime.vulkan.word_view import WordView

pytestmark = pytest.mark.own_devices


NAMES = vulkan_names() or [pytest.param("", marks=pytest.mark.skip(reason="no Vulkan device here"))]


@pytest.fixture(params=NAMES)
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    """Each device in turn, opened."""
    opened = Context(int(request.param.partition(":")[2]), request.param)
    yield opened
    opened.close()


def wanted(groups: int) -> Wanted:
    """The copy kernel with a local size of its own."""
    shader = load_shader("copy")
    return shader.spirv, shader.specialize({"LOCAL_X": groups}), 2, shader.push_bytes, 0


def make(context: Context, groups: int) -> None:
    """Make a pipeline and gives it back."""
    code, values, _, push_bytes, _ = wanted(groups)
    ends = [context.storage(64), context.storage(64)]
    context.pipeline(code, ends, values, push_bytes).close()


# -- copies ----------------------------------------------------------------------------------------


def test_copies_move_the_words_asked_for_and_no_others(context: Context) -> None:
    source, page, target = context.host(100), context.storage(200), context.host(100, read=True)
    source.array[:] = np.arange(100)
    target.array[:] = 7
    recording = context.recording()
    recording.begin()
    recording.copy(source, page, 3, 150, 41)
    recording.barrier("copy", "copy")
    recording.copy(page, page, 150, 20, 41)  # within one buffer
    recording.barrier("device", "device")
    recording.copy(page, target, 20, 59, 41)
    recording.barrier("copy", "host")
    recording.end()
    for buffer in (source, page):  # what a recording uses lives as long as it does
        buffer.close()
    recording.submit()
    recording.wait(60)
    assert target.array.tolist() == [7] * 59 + [*range(3, 44)]


def test_copies_outside_of_buffers_are_errors(context: Context) -> None:
    one, two = context.storage(64), context.host(32)
    recording = context.recording()
    with pytest.raises(DeviceError, match=r"call begin\(\)"):
        recording.copy(one, two, 0, 0, 1)
    recording.begin()
    for at, to, words in ((0, 0, 0), (0, 0, 33), (-1, 0, 1), (0, -1, 1), (60, 0, 5), (0, 31, 2)):
        with pytest.raises(ValueError, match="words within buffers of 64 and 32"):
            recording.copy(one, two, at, to, words)
    with pytest.raises(ValueError, match="do not overlap"):
        recording.copy(one, one, 0, 5, 6)
    two.close()
    with pytest.raises(DeviceError, match="open buffer"):
        recording.copy(one, two, 0, 0, 1)


def test_what_is_uploaded_is_there_by_both_ways(
    context: Context, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vksched.runtime.vulkan.staging.STAGING_WORDS", 64)
    monkeypatch.setattr("vksched.runtime.vulkan.staging.PIECES_AT_ONCE", 2)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in (5, 200, 1, 64)]
    page = context.storage(400)
    for write in (write_new, upload):
        reported: list[int] = []

        def tell(what: str, done: int, total: int, reported: list[int] = reported) -> None:
            reported.append(done)

        write(context, page, arrays, tell)
        assert len(reported) > 1 and reported == sorted(set(reported))
        at = 0
        for array in arrays:
            words = download(context, page, Span(0, at, array.size))
            assert words.tobytes() == array.tobytes()
            at += -(-array.size // 16) * 16
        upload(context, page, [np.zeros(400, np.float32)])
        assert not download(context, page, Span(0, 0, 400)).any()


@pytest.mark.parametrize("value", [0.0, -0.0, 2.0, False])
@pytest.mark.parametrize("left", [0, 7])
def test_a_value_that_is_everywhere_is_written_whatever_lies_there(
    context: Context, monkeypatch: pytest.MonkeyPatch, value: float, left: int
) -> None:
    """Zeros are left where they lie already, as in memory that is new."""
    monkeypatch.setattr("vksched.runtime.vulkan.staging.STAGING_WORDS", 64)
    page = context.storage(416)
    upload(context, page, [np.full(416, left, np.uint32)])
    one = np.array(value) if value is False else np.float32(value)
    write_new(context, page, [np.broadcast_to(one, 200), np.broadcast_to(one, 150)])
    wanted = np.full(200, value, np.uint32 if value is False else np.float32).tobytes()
    assert download(context, page, Span(0, 0, 200)).tobytes() == wanted
    assert download(context, page, Span(0, 208, 150)).tobytes() == wanted[:600]
    with page.mapped() as words:
        seen = words is not None
    if seen:  # else it comes through a staging buffer, with what lies between
        assert (download(context, page, Span(0, 200, 8)) == left).all()


def test_memory_that_the_host_cannot_see_is_filled_by_copies(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, array = context.storage(64), np.arange(40, dtype=np.float32)
    monkeypatch.setattr(binding.companion, "map_memory", lambda manager, tensor: None)
    with page.mapped() as words:
        assert words is None
    submitted = context.counters.submissions
    write_new(context, page, [array])
    assert context.counters.submissions == submitted + 1
    assert download(context, page, Span(0, 0, 40)).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64", "bool"])
def test_a_view_of_words_reads_what_it_wrote(dtype: str) -> None:
    type_ = TensorType((3, 5), dtype)
    words = np.zeros(type_.words, np.uint32)
    view = WordView(words, type_)
    values = (np.arange(15).reshape(5, 3).T % 4 - 1).astype(dtype)  # not contiguous
    view.write(values)
    assert view.read().dtype == values.dtype and np.array_equal(view.read(), values)
    assert np.array_equal(WordView(words.copy(), type_).read(), values)


# -- pipelines -------------------------------------------------------------------------------------


def counts(context: Context) -> tuple[int, int, int]:
    """Pipelines compiled so far, there now, without a user."""
    found: tuple[int, int, int] = binding.companion.count_pipelines(context._device.manager)
    return found


def test_a_pipeline_is_compiled_once_for_all_buffers(context: Context) -> None:
    make(context, 32)
    assert counts(context) == (1, 1, 1)
    make(context, 32)
    assert counts(context) == (1, 1, 1)
    make(context, 16)
    assert counts(context) == (2, 2, 2)
    context.make_pipelines([wanted(32), wanted(8), wanted(4), wanted(8)])
    assert counts(context) == (4, 4, 4)
    make(context, 8)
    assert counts(context) == (4, 4, 4)


def test_of_pipelines_without_a_user_the_oldest_go(context: Context) -> None:
    before = binding.companion.set_max_idle_pipelines(2)
    try:
        code, values, _, push_bytes, _ = wanted(64)
        ends = [context.storage(64), context.storage(64)]
        used = context.pipeline(code, ends, values, push_bytes)
        for groups in (1, 2, 4, 2, 8):
            make(context, groups)
        assert counts(context) == (5, 3, 2)
        make(context, 8)  # kept, as it was used last
        assert counts(context) == (5, 3, 2)
        make(context, 1)  # compiled again
        assert counts(context) == (6, 3, 2)
        used.close()
        assert counts(context) == (6, 2, 2)
    finally:
        binding.companion.set_max_idle_pipelines(before)


def test_what_cannot_be_compiled_says_so_where_it_is_needed(context: Context) -> None:
    context.make_pipelines([])
    assert counts(context) == (0, 0, 0)
    context.close()
    with pytest.raises(DeviceError, match="open device"):
        context.make_pipelines([wanted(64)])


@pytest.mark.parametrize("name", NAMES)
def test_graphs_of_other_lengths_compile_no_shader_again(name: str) -> None:
    w = vs.weight(np.eye(8, dtype=np.float32))
    with vs.Scheduler([name]) as sched:
        context = sched.devices[0].context  # type: ignore[attr-defined]
        grow = sched.function(lambda x, row: vs.concat([x, vs.matmul(row, w)], axis=0), limit=1)
        x, row = np.zeros((4, 8), np.float32), np.ones((1, 8), np.float32)
        seen = []
        for _ in range(4):
            x = np.asarray(grow(x=x, row=row))
            seen.append(counts(context)[0])
        assert x.sum() == 32 and x.shape == (8, 8)
        assert seen[0] > 0 and len(set(seen[1:])) == 1


def test_negative_zero_is_another_call_than_zero(devices: list[str]) -> None:
    x = vs.input("x", (4,))
    with vs.Scheduler(devices) as sched:
        run = sched.compile([vs.pad(x, [(1, 0)], value=0.0), vs.pad(x, [(1, 0)], value=-0.0)])
        one, two = run(x=np.ones(4, np.float32))
    assert not np.signbit(one[0]) and np.signbit(two[0])


def test_copies_out_wait_for_the_dispatches_before_them(
    devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the plan's last barrier stands between two of them."""
    if devices == ["cpu"]:
        pytest.skip("no device beside the CPU")
    log: list[str] = []
    for name in ("barrier", "copy", "dispatch"):
        real = getattr(Recording, name)

        def logged(self: Recording, *args: object, name: str = name, real: Any = real) -> None:
            log.append(f"{name} {args[0]}" if name == "barrier" else name)
            real(self, *args)

        monkeypatch.setattr(Recording, name, logged)
    x = vs.input("x", (64,))
    first = vs.cumsum(x, 0)
    with vs.Scheduler([devices[0]]) as sched:
        run = sched.compile([first, vs.softmax(first)])
        assert max(run.plan.splits[0].barriers) > 3  # between the copies out
    built = log.index("dispatch")
    last = len(log) - 1 - log[::-1].index("dispatch")
    copies = [at for at, what in enumerate(log) if what == "copy" and at > built]
    assert "barrier device" in log[built : copies[0]]
    assert "barrier device" in log[last : copies[1]]
