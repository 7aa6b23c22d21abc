"""Options of `vksched info` and `vksched run` for the model, its inputs and their sizes."""

from __future__ import annotations

import shlex
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ...common.errors import GraphError, VkschedError, close_text

if TYPE_CHECKING:
    from ...importers.onnx.example_inputs import Sizes
    from ...importers.onnx.model import Model
    from ...ir.graph import Graph

WIDE = 200
"""Width of tables in a file, in columns."""
model_argument = click.argument("model_file", metavar="MODEL.onnx")
devices_option = click.option(
    "--devices", metavar="A,B", help="Comma-separated devices; the CPU is always last."
)
CACHE_TYPES = ("f32", "f16", "q8_0")
"""Element types of the KV cache: the names of importers/gguf/kv_cache.py, which help texts need not
import.
"""
ctx_option = click.option(
    "-c",
    "--ctx-size",
    "ctx",
    type=click.IntRange(1),
    help="Context length in tokens.  [default: 4096, or the model's limit]",
)
place_option = click.option(
    "--place",
    "places",
    multiple=True,
    metavar="PATTERN=DEVICE",
    help="Place nodes whose names match PATTERN on DEVICE (repeatable).",
)
input_option = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=FILE",
    help="Array of an input, .npy or .pb; a .npz without NAME= has several (repeatable).",
)
random_option = click.option(
    "--random-inputs",
    is_flag=True,
    help="Generate random arrays for missing inputs.",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Seed of --random-inputs.  [default: 0]",
)
dim_option = click.option(
    "--free-dim",
    "dims",
    multiple=True,
    metavar="NAME=SIZE",
    help="Size of a named dimension (repeatable).",
)
shape_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="INPUT=1,3,224",
    help="Shape of an input (repeatable).",
)


def cache_type_option(
    what: str, default: str = "f16 on GPUs with float16, f32 elsewhere and with float32"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option --cache-type, with None as the default. default: its meaning."""
    return click.option(
        "--cache-type", type=click.Choice(CACHE_TYPES), help=f"{what}  [default: {default}]"
    )


def parse_dims(pairs: Sequence[str]) -> dict[str, int]:
    """Return sizes by name, from "batch=4"."""
    return {name: _size(text, pairs) for name, text in map(_pair, pairs)}


def parse_shapes(pairs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return shapes by name, from "x=1,3,224,224"; "x=" is a scalar."""
    return {
        name: tuple(_size(part, pairs) for part in text.split(",") if text)
        for name, text in map(_pair, pairs)
    }


def size_options(model: Model, sizes: Sizes) -> str:
    """Return the options that set the assumed sizes, quoted for a shell; "" if none are assumed."""
    options = []
    named = dict.fromkeys(sizes.assumed)
    for value in model.inputs:
        dims = value.dims or ()
        if any(f"dimension {i} of {value.name}" in named for i in range(len(dims))):
            pairs = zip(dims, sizes.shapes[value.name], strict=True)
            text = ",".join("2" if d is None or d in named else str(size) for d, size in pairs)
            options.append(f"--shape {shlex.quote(f'{value.name}={text}')}")
            named = {n: None for n in named if n not in dims}
    known = {d for value in model.inputs for d in value.dims or ()}
    options += [f"--free-dim {shlex.quote(f'{name}=2')}" for name in named if name in known]
    return " ".join(options)


def parse_places(pairs: Sequence[str]) -> dict[str, str]:
    """Return device names by pattern, from "layer.9.*=vulkan:1"."""
    out: dict[str, str] = {}
    for place in pairs:
        pattern, _, device = place.rpartition("=")
        if not pattern or not device:
            raise click.UsageError(f"--place expects PATTERN=DEVICE, got {place!r}.")
        out.pop(pattern, None)  # later ones take precedence, so they come last
        out[pattern] = device
    return out


def check_places(places: Iterable[str], graphs: Sequence[Graph], stage: str = "place") -> None:
    """Raise PlanError with close matches for a pattern that matches in no graph. stage: prefix of
    the message.
    """
    from ...plan.types.node_names import NameIndex

    names = [NameIndex(graph, stage) for graph in graphs]
    for pattern in places:
        if names and not any(index.matches(pattern) for index in names):
            names[-1].find(pattern)


def check_folder(path: str) -> None:
    """Raise early if a file cannot be written because its folder is missing."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise VkschedError(f"[command] expected a folder for {path}, got none at {folder}")


def exclude(option: str, others: Mapping[str, object]) -> None:
    """Refuse options without effect in combination with `option`. others: their values."""
    for other, value in others.items():
        if value:
            raise click.UsageError(f"{option} and {other} exclude each other.")


def need(options: Mapping[str, object], what: str) -> None:
    """Refuse options without effect unless another option or a model is present."""
    for option, value in options.items():
        if value:
            raise click.UsageError(f"{option} needs {what}.")


def parse_devices(names: str | None) -> list[str] | None:
    """Return device names, from "vulkan:0,cpu"."""
    return None if names is None else [name.strip() for name in names.split(",")]


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise GraphError(f"[command] expected NAME=VALUE, got {text!r}")
    return name, value


def _size(text: str, texts: Sequence[str]) -> int:
    if not text.strip().isdecimal():
        raise GraphError(f"[command] expected sizes of 0 and more, got {' '.join(texts)!r}")
    return int(text)


def read_arrays(texts: Sequence[str], model: Model) -> dict[str, Any]:
    """Return arrays by name, from "x=a.npy", "x=input_0.pb" or "all.npz".

    Raise GraphError for an unknown input, VkschedError for an unreadable file.
    """
    out: dict[str, Any] = {}
    known = [*(value.name for value in model.inputs), *model.defaults]
    for text in texts:
        name, _, place = text.rpartition("=")
        if name and name not in known:
            hint = close_text(name, known)
            raise GraphError(f"[command] expected inputs of {known}, got {name!r}{hint}")
        found = _read(place)
        if name and len(found) != 1:
            raise VkschedError(
                f"[command] expected one array in {place} for input {name!r}, got {len(found)}"
            )
        if not name and not place.endswith(".npz"):
            raise GraphError(f"[command] expected NAME=FILE, got {text!r}")
        for key in () if name else found:
            if key not in known:
                hint = close_text(key, known)
                raise GraphError(
                    f"[command] expected arrays in {place} for inputs {known}, got {key!r}{hint}"
                )
        out.update({name or key: array for key, array in found.items()})
    return out


def _read(place: str) -> dict[str, Any]:
    path = Path(place)
    try:
        if path.suffix == ".pb":
            from onnx import TensorProto

            from ...importers.onnx.read.external_data import Folder
            from ...importers.onnx.read.tensors import TensorReader

            tensor = TensorProto.FromString(path.read_bytes())
            # the reader of the onnx package would open a file of the working folder for it
            return {"": TensorReader(Folder(None)).array(tensor, "the tensor")}
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {"": found}
        with found:
            return dict(found)
    except Exception as error:  # errors of numpy and protobuf, of many types
        raise VkschedError(f"[command] cannot read {place}: {error_text(error, place)}") from error


def error_text(error: BaseException, place: str = "") -> str:
    """Return an error as one line. place: file name to omit from it."""
    if isinstance(error, OSError) and error.strerror and str(error.filename) == place:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split())


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Yield a list that receives the texts of all warnings at the end, each once."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            yield texts
        finally:
            texts.extend(dict.fromkeys(" ".join(str(w.message).split()) for w in found))


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a thread-safe function of (what, done, total), in bytes, that shows a progress bar per
    `what`.

    Its dependencies are imported on first use. Nothing is shown after the context has ended.
    """
    tasks: dict[str, Any] = {}
    drawing = threading.Lock()
    with ExitStack() as shown:
        bars: Any = None

        def show(what: str, done: int, total: int) -> None:
            nonlocal bars
            with drawing:
                if quiet:
                    return
                bars = bars or shown.enter_context(_bars())
                if what not in tasks:
                    tasks[what] = bars.add_task(what, total=total)
                bars.update(tasks[what], completed=done, total=total)

        try:
            yield show
        finally:
            with drawing:
                quiet = True


def _bars() -> Any:
    from rich.progress import BarColumn, DownloadColumn, TimeElapsedColumn

    from ...common.console import DescriptionColumn, ProgressBars

    return ProgressBars(DescriptionColumn(), BarColumn(), DownloadColumn(), TimeElapsedColumn())


def table(*columns: str, left: int = 1) -> Any:
    """Return an empty table whose columns after the first `left` are numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", overflow="fold")
    return table


def print_table(table: Any, wide: bool = False) -> None:
    """Print a table and an empty line. wide: do not wrap lines in a file."""
    from ...common.console import PrintableConsole

    console = PrintableConsole()
    if wide and not console.is_terminal:
        console = PrintableConsole(width=WIDE)
    console.print(table)
    click.echo()
