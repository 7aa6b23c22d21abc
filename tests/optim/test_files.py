"""States in files: a training goes on to the bit, and a file is whole or the older one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import needs_posix

import vksched as vs
from vksched.common.dtypes import NDArray

pytest.importorskip("safetensors")
X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
T = np.random.default_rng(1).standard_normal((8, 2)).astype(np.float32)


class Training:
    """A small step on one device; its tensors are made anew each time."""

    def __init__(self, sched: vs.Scheduler) -> None:
        self.sched = sched
        w = vs.state(vs.init.kaiming_normal((4, 2), name="w", fans=(4, 2)), "w")
        loss = vs.reduce_sum((vs.input("x", (8, 4)) @ w - T) * (vs.input("x2", (8, 4)) @ w - T))
        self.updates = vs.optim.adamw(w, vs.grad(loss, w), vs.optim.cosine(0.1, 20, warmup=3))
        self.run = sched.compile(loss, updates=self.updates)

    def steps(self, count: int) -> list[NDArray]:
        return [self.run(x=X, x2=X) for _ in range(count)]

    def values(self) -> dict[str, NDArray]:
        return {state.name: self.sched.read(state) for state in self.updates}


def test_a_training_goes_on_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "step.safetensors"
    with vs.Scheduler(["cpu"]) as sched:
        whole = Training(sched)
        whole.steps(3)
        vs.optim.save(path, sched, whole.updates)
        expected, last = whole.steps(4), whole.values()
    with vs.Scheduler(["cpu"]) as sched:
        resumed = Training(sched)
        vs.optim.load(path, sched, resumed.updates)
        np.testing.assert_array_equal(resumed.steps(4), expected)
        for name, value in resumed.values().items():
            np.testing.assert_array_equal(value, last[name])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_file_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step.safetensors"
    path.write_bytes(b"older")

    def fail(*_: object) -> None:
        raise OSError("no space")

    with vs.Scheduler(["cpu"]) as sched:
        training = Training(sched)
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="no space"):
            vs.optim.save(path, sched, training.updates)
    assert path.read_bytes() == b"older" and len(list(tmp_path.iterdir())) == 1


def test_files_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "states.safetensors"
    a, b = vs.state(np.ones(3, np.float32), "a"), vs.state(np.ones(2, np.float32), "b")
    other = vs.state(np.ones(4, np.float32), "b")
    with vs.Scheduler(["cpu"]) as sched:
        vs.optim.save(path, sched, [a, b])
        sched.write(a, np.zeros(3, np.float32))
        for states, match in (
            ([a, other], "expected b as float32"),
            ([a], "with b, which no state has"),
            ([a, b, vs.state(np.ones(1, np.float32), "c")], "without c"),
        ):
            with pytest.raises(vs.ModelFormatError, match=match):
                vs.optim.load(path, sched, states)
        np.testing.assert_array_equal(sched.read(a), 0)
        path.write_bytes(path.read_bytes()[:20])
        with pytest.raises(vs.ModelFormatError, match="expected a safetensors file"):
            vs.optim.load(path, sched, [a, b])
        with pytest.raises(vs.GraphError, match="two of 'b'"):
            vs.optim.save(path, sched, [b, other])
        with pytest.raises(vs.GraphError, match="expected states, got"):
            vs.optim.save(path, sched, [vs.input("x", (2,))])
        with pytest.raises(vs.GraphError, match="expected the Scheduler second"):
            vs.optim.save(path, sched.compile(a + 1.0), [a])  # type: ignore[arg-type]


def test_states_come_alone_or_in_a_dict_into_files_that_others_may_read(tmp_path: Path) -> None:
    path, plain = tmp_path / "states.safetensors", tmp_path / "plain"
    plain.touch()
    a = vs.state(np.ones(3, np.float32), "a")
    with vs.Scheduler(["cpu"]) as sched:
        vs.optim.save(path, sched, a)
        assert path.stat().st_mode == plain.stat().st_mode
        path.chmod(0o640)
        sched.write(a, np.full(3, 2, np.float32))
        vs.optim.save(path, sched, {"weight": a})
        assert path.stat().st_mode & 0o777 == 0o640
        sched.write(a, np.zeros(3, np.float32))
        vs.optim.load(path, sched, {"weight": a})
        np.testing.assert_array_equal(sched.read(a), 2)


def test_states_are_written_as_they_read_however_they_lie_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "states.safetensors"
    a, x = vs.state(np.zeros((2, 3), np.float32), "a"), vs.input("x", (3, 2))
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.reduce_sum(x), updates={a: vs.transpose(x)})
        run(x=np.arange(6, dtype=np.float32).reshape(3, 2))
        vs.optim.save(path, sched, a)
        sched.write(a, np.zeros((2, 3), np.float32))
        vs.optim.load(path, sched, a)
        np.testing.assert_array_equal(sched.read(a), [[0, 2, 4], [1, 3, 5]])


def test_states_of_a_file_are_of_one_moment(tmp_path: Path) -> None:
    """While submitted runs go on, each state would be of another one."""
    path = tmp_path / "states.safetensors"
    states = [vs.state(np.zeros(50_000, np.float32), f"s{i}") for i in range(6)]
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.reduce_sum(states[0]), updates={s: s + 1.0 for s in states})
        futures = [run.submit() for _ in range(20)]
        vs.optim.save(path, sched, states)
        for future in futures:
            future.result()
        futures = [run.submit() for _ in range(20)]
        vs.optim.load(path, sched, states)
        assert {float(sched.read(s)[0]) for s in states} == {20}


def test_values_out_of_bounds_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "states.safetensors"
    a, free = vs.state(np.ones(3, np.float32), "a"), vs.state(np.int32(77), "b")
    bound = vs.state(np.int32(1), "b", bounds=(0, 3))
    with vs.Scheduler(["cpu"]) as sched:
        vs.optim.save(path, sched, [a, free])
        sched.write(a, np.zeros(3, np.float32))
        with pytest.raises(vs.IndexOutOfRange, match="values in 0..3 for 'b'"):
            vs.optim.load(path, sched, [a, bound])
        assert not sched.read(a).any()


def test_a_closed_scheduler_has_no_states(tmp_path: Path) -> None:
    a = vs.state(np.zeros(3, np.float32), "a", backup=False)
    with vs.Scheduler(["cpu"]) as sched:
        sched.compile(vs.reduce_sum(a), updates={a: a + 1.0})()
    with pytest.raises(vs.DeviceError, match="expected an open scheduler"):
        vs.optim.save(tmp_path / "states.safetensors", sched, a)
    assert not list(tmp_path.iterdir())


@needs_posix
def test_links_and_devices_stay(tmp_path: Path) -> None:
    a, latest, pipe = vs.state(np.ones(3, np.float32), "a"), tmp_path / "latest", tmp_path / "pipe"
    latest.symlink_to(tmp_path / "step.7")
    os.mkfifo(pipe)
    with vs.Scheduler(["cpu"]) as sched:
        vs.optim.save(latest, sched, a)
        vs.optim.save(latest, sched, a)
        with pytest.raises(FileExistsError, match="a plain file to replace"):
            vs.optim.save(pipe, sched, a)
    assert latest.is_symlink() and (tmp_path / "step.7").is_file() and pipe.is_fifo()


def test_names_that_no_file_can_have_are_reported(tmp_path: Path) -> None:
    stored, a = vs.state(np.ones(3, np.float32), "__metadata__"), vs.state(np.ones(3, np.float32))
    with vs.Scheduler(["cpu"]) as sched:
        with pytest.raises(vs.GraphError, match="another name than '__metadata__'"):
            vs.optim.save(tmp_path / "file", sched, stored)
        vs.optim.save(tmp_path / ("n" * 250), sched, a)
        with pytest.raises(vs.GraphError, match="expected states, got None"):
            vs.optim.save(tmp_path / "file", sched, None)  # type: ignore[arg-type]


def test_paths_that_no_file_can_have_are_reported(tmp_path: Path) -> None:
    a = vs.state(np.ones(3, np.float32), "a")
    with vs.Scheduler(["cpu"]) as sched:
        with pytest.raises(FileNotFoundError, match="there is no .*none"):
            vs.optim.save(tmp_path / "none" / "file", sched, a)
        with pytest.raises(IsADirectoryError, match="got the folder"):
            vs.optim.save(tmp_path, sched, a)


def test_names_of_other_formats_are_refused(tmp_path: Path) -> None:
    a = vs.state(np.ones(3, np.float32), "a")
    with vs.Scheduler(["cpu"]) as sched:
        for name in ("step.npz", "step.NPZ", "step.pt", "step.onnx"):
            with pytest.raises(vs.GraphError, match=r"ends in \.safetensors.*step\.safetensors'"):
                vs.optim.save(tmp_path / name, sched, a)
        assert not list(tmp_path.iterdir())
        for name in ("step", "step.7", "step.states"):
            vs.optim.save(tmp_path / name, sched, a)
            vs.optim.load(tmp_path / name, sched, a)


def test_files_of_other_formats_say_how_to_convert_them(tmp_path: Path) -> None:
    """An .npz does by running just that line."""
    a = vs.state(np.zeros(3, np.float32), "a")
    path = tmp_path / "step.npz"
    with vs.Scheduler(["cpu"]) as sched:
        for save in (np.savez, np.savez_compressed):
            save(path, a=np.arange(3, dtype=np.float32))
            with pytest.raises(vs.ModelFormatError, match=r"an \.npz archive of numpy") as caught:
                vs.optim.load(path, sched, a)
            line = str(caught.value).partition("; try ")[2]
            subprocess.run(
                [sys.executable, "-c", f"import numpy, safetensors.numpy; {line}"], check=True
            )
            vs.optim.load(path.with_suffix(".safetensors"), sched, a)
            assert sched.read(a).tolist() == [0, 1, 2]
        np.save(tmp_path / "a.npy", np.ones(3))
        (tmp_path / "a.pt").write_bytes(b"PK\x03\x04" + bytes(26) + b"archive/data.pkl")
        (tmp_path / "a.pkl").write_bytes(pickle.dumps({}))
        for name, kind in (("npy", "one array"), ("pt", "PyTorch"), ("pkl", "a pickle")):
            with pytest.raises(vs.ModelFormatError, match=f"{kind}.*try safetensors.numpy.save_f"):
                vs.optim.load(tmp_path / f"a.{name}", sched, a)
