"""Checkpoint files: save and load states atomically.

A file is written under a temporary name, synced, and renamed, so that an interrupted program leaves
the previous file. Format: safetensors, with a tensor for each state by its name.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..common.dtypes import NDArray, numpy_dtype
from ..common.errors import GraphError, ModelFormatError, VkschedError
from ..ir.tensor import Tensor
from ..ops.creation.state import check_values

FORMAT = "vksched states 1"


SUFFIX = ".safetensors"
OTHERS = frozenset(
    (".npz", ".npy", ".pt", ".pth", ".pkl", ".pickle", ".h5", ".hdf5", ".onnx", ".gguf", ".zip")
)
"""File name suffixes of other formats."""
_KINDS = {
    b"\x93NUMPY": "an .npy file of numpy, which holds one array without a name",
    b"\x80": "a pickle",
    b"\x89HDF": "an HDF5 file",
    b"GGUF": "a GGUF file",
}
_CONVERT = "safetensors.numpy.save_file({name: array, ...}, path)"


class StateHolder(Protocol):
    """An object that holds states, such as a Scheduler."""

    def read(self, state: Tensor) -> NDArray: ...

    def write(self, state: Tensor, value: object) -> None: ...

    def synchronize(self) -> None: ...


States = Tensor | Mapping[Any, Any] | Iterable[Tensor]
"""Updates, or states: one, an iterable, or those of a dict."""


def save(path: str | os.PathLike[str], sched: StateHolder, states: States) -> None:
    """Write the current values of states to a safetensors file.

    An existing file is replaced atomically. All values are of one moment: submitted runs complete
    first. No other thread may submit runs meanwhile.

    Parameters
    ----------
    path
        The file, with the suffix .safetensors.
    sched
        The Scheduler that holds the states.
    states
        The updates that a graph was compiled with, or states: one, a sequence, or a dict of them.
        Their names have to differ.

    Raises
    ------
    GraphError
        Two states have one name, there are none, or the suffix is that of another format.
    StateLost
        A value was on a device that failed.
    OSError
        The file cannot be written; an existing one is unchanged.
    """
    _check_holder("save", sched)
    named, library = _named("save", states), _safetensors()
    suffix = Path(path).suffix
    if suffix.lower() in OTHERS:
        raise GraphError(
            f"[save] expected a path that ends in {SUFFIX}, the format of the file, got "
            f"{os.fspath(path)!r}; try {str(Path(path).with_suffix(SUFFIX))!r}"
        )
    target = Path(os.path.realpath(path))  # write to the target of a link, and keep the link
    if target.is_dir():
        raise IsADirectoryError(f"[save] expected the path of a file, got the folder {target}")
    if target.exists() and not target.is_file():
        raise FileExistsError(f"[save] expected a plain file to replace, got {target}")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"[save] expected a path in a folder, there is no {target.parent}")
    sched.synchronize()
    # in C order: the library writes raw memory
    arrays = {name: np.asarray(sched.read(state), order="C") for name, state in named.items()}
    content = library.numpy.save(arrays, metadata={"format": FORMAT})
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):  # keep the permissions of the existing file
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str], sched: StateHolder, states: States) -> None:
    """Set states to the values in a file that `save` wrote; none of them if the file does not
    match.

    Submitted runs complete first.

    Parameters
    ----------
    path, sched, states
        As in `save`.

    Raises
    ------
    ModelFormatError
        It is not a safetensors file, or its names, shapes or types differ from those of the states.
    IndexOutOfRange
        A value is outside the bounds of its state.
    OSError
        It cannot be read.
    DeviceError
        A device failed meanwhile; some states may have their new value, so load again.
    """
    _check_holder("load", sched)
    named = _named("load", states)
    content = Path(path).read_bytes()
    library = _safetensors()
    try:
        arrays = library.numpy.load(content)
    except (library.SafetensorError, ValueError, KeyError) as error:
        got = _kind_of(content, path) or f"{path}: {error}"
        raise ModelFormatError(f"[load] expected a safetensors file, got {got}") from None
    missing, unknown = sorted(named.keys() - arrays.keys()), sorted(arrays.keys() - named.keys())
    if missing or unknown:
        raise ModelFormatError(
            f"[load] expected a file with the names of the states, got {path}"
            + (f" without {', '.join(missing[:5])}" if missing else "")
            + (f" with {', '.join(unknown[:5])}, which no state has" if unknown else "")
        )
    for name, state in named.items():
        array = arrays[name]
        if array.shape != state.shape or array.dtype != numpy_dtype(state.dtype):
            raise ModelFormatError(
                f"[load] expected {name} as {state.type}, got {array.dtype} {array.shape} in {path}"
            )
        check_values(state, array)
    sched.synchronize()
    for name, state in named.items():
        sched.write(state, arrays[name])


def _kind_of(content: bytes, path: str | os.PathLike[str]) -> str:
    """Return the name of another file format with a conversion; "" if unknown."""
    name = os.fspath(path)
    if content.startswith(b"PK\x03\x04"):
        if b".npy" in content[:256]:
            converted = str(Path(name).with_suffix(SUFFIX))
            arrays = f"dict(numpy.load({name!r}))"
            return (
                f"{name}, an .npz archive of numpy; try safetensors.numpy.save_file({arrays}, "
                f"{converted!r})"
            )
        return f"{name}, a zip archive such as a checkpoint of PyTorch; try {_CONVERT}"
    for begin, kind in _KINDS.items():
        if content.startswith(begin):
            return f"{name}, {kind}; try {_CONVERT}"
    return ""


def _named(op: str, states: States) -> dict[str, Tensor]:
    if isinstance(states, Tensor):
        states = (states,)
    elif isinstance(states, Mapping) and not any(isinstance(key, Tensor) for key in states):
        states = states.values()
    if not isinstance(states, Iterable):
        raise GraphError(f"[{op}] expected states, got {states!r}; try the updates")
    out: dict[str, Tensor] = {}
    for state in states:
        if not isinstance(state, Tensor) or state.op != "state":
            raise GraphError(f"[{op}] expected states, got {state!r}; try the updates")
        if state.name in out:
            raise GraphError(
                f"[{op}] expected states of different names, got two of {state.name!r}; "
                "try vs.state(array, name), or another name= for one of two optimizers"
            )
        if state.name == "__metadata__":
            raise GraphError(f"[{op}] expected another name than {state.name!r}, which files have")
        out[state.name] = state
    if not out:
        raise GraphError(f"[{op}] expected states, got none")
    return out


def _check_holder(op: str, sched: object) -> None:
    if not callable(getattr(sched, "read", None)) or not callable(getattr(sched, "write", None)):
        raise GraphError(f"[{op}] expected the Scheduler second, after the path, got {sched!r}")


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise VkschedError(
            '[optim] saving and loading needs safetensors; try pip install "vksched[train]"'
        ) from error
    return safetensors
