"""Reading GGUF files: what is mapped, what is accepted, and what each bad file is told."""

from __future__ import annotations

import math
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from conftest import needs_linux, needs_posix
from gguf_files import QUANTS, Draft, Info, Key, Type, ValueType, all_kinds, array, part, string
from mutants import maps_of

from vksched.common.errors import ModelFormatError
from vksched.importers.gguf.read.cursor import Cursor
from vksched.importers.gguf.read.limits import MAX_RANK
from vksched.importers.gguf.read.loader import GgufFile, read_gguf
from vksched.importers.gguf.read.metadata import MANY
from vksched.importers.gguf.read.texts import LazyStrings
from vksched.ops.lowering import native_kernels

ONE = Draft().with_tensor("w", (2, 32), Type.F32, bytes(256))


def refused(source: object, *parts: str) -> None:
    """Assert that reading fails with a message that has all the parts."""
    values = source.packed() if isinstance(source, Draft) else source
    with pytest.raises(ModelFormatError) as caught:
        read_gguf(values)  # type: ignore[arg-type]
    for text in ("[gguf] ", *parts):
        assert text in str(caught.value)


# What is read


def test_all_kinds_of_metadata_are_read() -> None:
    found = read_gguf(all_kinds().packed()).metadata
    assert found["general.architecture"] == "llama"
    assert found["number.INT8"] == 1 and found["number.FLOAT64"] == 1.0
    assert found["number.BOOL"] is True
    for kind in ("UINT8", "INT16", "FLOAT32", "UINT64", "BOOL"):
        values = found[f"array.{kind}"]
        assert isinstance(values, np.ndarray) and not values.flags.writeable
        assert values.tolist() == [0, 1, 1]
    assert found["array.BOOL"].dtype == bool  # type: ignore[union-attr]
    assert found["array.texts"] == ("a", "", "ü")
    numbers, texts = found["nested"]  # type: ignore[misc]
    assert (numbers.tolist(), texts) == ([1, 2, 3], ("x",))  # type: ignore[union-attr]


def test_pieces_of_a_vocabulary_may_be_parts_of_a_letter() -> None:
    raw = array(ValueType.STRING, 2, string(b"\xc3") + string("ü"))
    found = read_gguf(Draft((Key("tokens", ValueType.ARRAY, raw),)).packed())
    assert found.metadata["tokens"] == ("\udcc3", "ü")


def many(count: int = MANY) -> tuple[str, ...]:
    return tuple(f"ü{number}" if number % 3 else "" for number in range(count))


def of_texts(texts: Sequence[str | bytes], count: int | None = None) -> Draft:
    content = b"".join(map(string, texts))
    raw = array(ValueType.STRING, len(texts) if count is None else count, content)
    return Draft((Key("tokens", ValueType.ARRAY, raw), Key("last", ValueType.UINT8, b"\x07")))


@pytest.mark.parametrize("mapped", [True, False])
def test_many_texts_are_built_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    texts = (*many(30 * MANY), "\udcc3")
    built: list[int] = []
    packed = of_texts([*texts[:-1], b"\xc3"]).packed()
    (tmp_path / "m.gguf").write_bytes(packed)
    decode = Cursor.texts

    def counted(cursor: Cursor, count: int, what: str) -> list[str]:
        built.append(count)
        return decode(cursor, count, what)

    monkeypatch.setattr(Cursor, "texts", counted)
    file = read_gguf(tmp_path / "m.gguf" if mapped else packed)
    found = file.metadata["tokens"]
    assert isinstance(
        found, LazyStrings if hasattr(native_kernels.native, "skip_gguf_strings") else tuple
    )
    assert len(found) == len(texts) and file.metadata["last"] == 7
    assert not built or isinstance(found, tuple)
    assert found == texts and texts == found and hash(found) == hash(texts)
    assert (found[0], found[-1], found[1:3]) == ("", "\udcc3", texts[1:3])
    assert [*found] == [*texts] and found.index("ü7") == 7 and "ü7" in found and "x" not in found
    assert found != texts[1:] and repr(found) == repr(texts) and built == [len(texts)]


def test_many_texts_that_are_not_all_there() -> None:
    count = MANY + 40
    content = of_texts(many(), count).packed()
    refused(content, f"key 'tokens': expected {count} strings, got", "cut off or damaged")


def test_texts_of_a_file_that_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(of_texts(many(30 * MANY)).packed())
    found = read_gguf(path).metadata["tokens"]
    if isinstance(found, tuple):
        pytest.skip("the native loops are older")
    with path.open("r+b") as file:
        file.truncate(1 << 16)
    with pytest.raises(ModelFormatError, match="expected .* bytes, got 65536"):
        found[0]  # type: ignore[index]


@pytest.mark.parametrize("version", [2, 3])
def test_tensors_equal_those_of_the_package(version: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(replace(all_kinds(), version=version).packed())
    found, wanted = read_gguf(path), gguf.GGUFReader(path)
    assert (found.version, found.parts, found.file_bytes) == (version, (path,), path.stat().st_size)
    assert list(found.tensors) == [f"{name}.weight" for name in QUANTS]
    for tensor, there in zip(found.tensors.values(), wanted.tensors, strict=True):
        assert (tensor.name, tensor.type) == (there.name, there.tensor_type.name)
        assert tensor.shape == (2, 3, 256) and tensor.size == 1536
        assert bytes(tensor.data) == there.data.tobytes() and tensor.nbytes == there.n_bytes
        got, expected = tensor.to_numpy(), gguf.dequantize(there.data, there.tensor_type)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, expected.reshape(tensor.shape))


@pytest.mark.parametrize("rank", [1, 2, MAX_RANK])
def test_tensors_have_as_many_sizes_as_the_format_allows(rank: int) -> None:
    shape = (2, *(1,) * (rank - 2), 32)[-rank:]
    draft = Draft().with_tensor("w", shape, Type.F32, bytes(4 * math.prod(shape)))
    assert read_gguf(draft.packed()).tensors["w"].shape == shape


def test_pieces_of_a_large_tensor_are_put_together(rng: np.random.Generator) -> None:
    raw = rng.integers(0, 0x3C, (1100, 8, 34), np.uint8)
    draft = Draft().with_tensor("w", (1100, 256), Type.Q8_0, raw.tobytes())
    got = read_gguf(draft.packed()).tensors["w"].to_numpy()
    np.testing.assert_array_equal(got, gguf.dequantize(raw.reshape(1100, -1), Type.Q8_0))


def test_float32_is_a_view_of_the_map(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    numbers = np.arange(1 << 16, dtype=np.float32)
    path.write_bytes(Draft().with_tensor("w", (256, 256), Type.F32, numbers.tobytes()).packed())
    file = read_gguf(path)
    got = file.tensors["w"].to_numpy()
    assert isinstance(file.tensors["w"].data.obj, mmap.mmap) and not got.flags.owndata
    assert not got.flags.writeable
    np.testing.assert_array_equal(got.ravel(), numbers)


def test_a_type_that_is_no_weight_is_named() -> None:
    file = read_gguf(Draft().with_tensor("w", (8,), Type.I32, bytes(32)).packed())
    with pytest.raises(ModelFormatError, match=r"\[gguf\] tensor 'w': expected .*, got I32; try"):
        file.tensors["w"].to_numpy()


def test_what_the_packages_writer_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_custom_alignment(64)
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    writer.add_token_scores([0.5, -1.0])
    writer.add_tensor("t", np.ones((3, 5), np.float16))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file):
        step()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(str(path))
    assert file.metadata["general.alignment"] == 64 and file.metadata["qwen2.block_count"] == 3
    assert file.metadata["tokenizer.ggml.tokens"] == ("a", "b")
    assert file.tensors["t"].to_numpy().tolist() == [[1.0] * 5] * 3


# What is refused


@pytest.mark.parametrize(
    ("draft", "parts"),
    [
        (replace(ONE, magic=b"GGML"), ("begins with b'GGUF'", "b'GGML'")),
        (replace(ONE, version=1), ("version 2 or 3", "got 1")),
        (replace(ONE, version=4), ("version 2 or 3", "got 4")),
        (replace(ONE, order=">"), ("little-endian", "big-endian")),
        (replace(ONE, tensor_count=1 << 62), ("count of tensors: expected at most", str(1 << 62))),
        (replace(ONE, key_count=1 << 40), ("count of keys: expected at most",)),
        (replace(ONE, data=bytes(255)), ("tensor 'w': expected 256 bytes", "255 bytes of data")),
        (ONE.with_key("k", ValueType.INT8, 1).with_key("k", ValueType.INT8, 2), ("'k' again",)),
        (replace(ONE, infos=ONE.infos * 2), ("'w' again",)),
        (replace(ONE, keys=(Key(b"\xff", 0, b"1"),)), ("name in UTF-8",)),
        (replace(ONE, keys=(Key("", 0, b"1"),)), ("name in UTF-8",)),
        (replace(ONE, keys=(Key("k", 13, bytes(8)),)), ("key 'k': expected a type", "got 13")),
        (replace(ONE, keys=(Key("k", 7, b"\2"),)), ("truth value of 0 or 1, got 2",)),
        (replace(ONE, keys=(Key("k", 9, array(7, 2, b"\1\3")),)), ("truth values", "got 3")),
        (replace(ONE, keys=(Key("k", 9, array(8, 1 << 50, b"")),)), ("count of strings",)),
        (replace(ONE, keys=(Key("k", 9, array(12, 1 << 50, b"")),)), ("key 'k', count",)),
        (
            replace(ONE, keys=(Key("k", 9, array(8, 2, string("", 1 << 60))),)),
            ("expected 2 strings",),
        ),
        (replace(ONE, keys=(Key("k", 8, string("", (1 << 64) - 1)),)), ("expected 1 strings",)),
        (
            replace(ONE, keys=(Key("k", 9, array(9, 1, b"") * 10 + bytes(99)),)),
            ("inside each other",),
        ),
        (replace(ONE, infos=(Info(b"\xfe", (1,), 0, 0),)), ("tensor 0: expected a name in UTF-8",)),
        (replace(ONE, infos=(Info("w" * 2000, (1,), 0, 0),)), ("length of its name", "2000")),
        (replace(ONE, infos=(Info("w", (), 0, 0),)), ("expected a rank of 1 to", "got 0")),
        (replace(ONE, infos=(Info("w", (1,), 0, 0, 1 << 31),)), ("expected a rank of 1 to",)),
        (replace(ONE, infos=(Info("w", (4, 0), 0, 0),)), ("sizes of 1 or more", "(0, 4)")),
        (replace(ONE, infos=(Info("w", (1 << 63, 1 << 63), 0, 0),)), ("tensor 'w': expected 3",)),
        (replace(ONE, infos=(Info("w", (33,), Type.Q4_0, 0),)), ("whole blocks of 32", "Q4_0")),
        (replace(ONE, infos=(Info("w", (32,), 4, 0),)), ("element type", "number 4", "newer gguf")),
        (replace(ONE, infos=(Info("w", (32,), 0, 16),)), ("multiple of 32, got 16",)),
        (replace(ONE, infos=(Info("w", (32,), 0, 1 << 63),)), ("tensor 'w': expected 128 bytes",)),
        (
            replace(ONE, infos=(Info("w", (32,), 0, 0), Info("u", (9,), 0, 96))),
            ("tensor 'u': expected data of its own", "'w'"),
        ),
        (ONE.with_key("general.alignment", ValueType.UINT32, 48), ("power of two", "got 48")),
        (ONE.with_key("general.alignment", ValueType.UINT32, 0), ("power of two", "got 0")),
        (ONE.with_key("general.alignment", ValueType.UINT32, 1 << 31), ("power of two",)),
        (ONE.with_key("general.alignment", ValueType.BOOL, True), ("power of two", "got True")),
        (ONE.with_key("general.alignment", ValueType.STRING, "x" * 999), ("got 'xxx", "...")),
        (ONE.with_key("split.count", ValueType.STRING, "2"), ("'split.count'", "got '2'")),
        (part(0, 2, tensors=["a"]), ("bytes of a part", "try its path")),
        (part(0, 1, 5, ["a"]), ("expected 5 tensors", "got 1")),
    ],
)
def test_wrong_files_are_reported_with_what_is_wrong(draft: Draft, parts: tuple[str, ...]) -> None:
    refused(draft, *parts)


def test_a_file_that_ends_anywhere_is_refused() -> None:
    whole = all_kinds().packed()
    for end in range(0, len(whole), 7):
        refused(whole[:end])


@needs_posix
def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "absent.gguf", "expected a model file at", "absent.gguf")
    os.mkfifo(tmp_path / "fifo.gguf")
    refused(tmp_path / "fifo.gguf", "expected a regular file")
    refused(tmp_path, "expected a")


@needs_linux
def test_a_refused_file_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(replace(ONE, data=bytes(1 << 17), infos=ONE.infos * 2).packed())
    with pytest.raises(ModelFormatError) as caught:
        read_gguf(path)
    assert "again" in str(caught.value) and maps_of(tmp_path) == 0


def test_the_package_is_asked_for_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(ONE.packed())
    code = (
        "import sys; sys.modules['gguf'] = None\nimport vksched as vs\n"
        f"try: vs.load({str(path)!r})\nexcept vs.VkschedError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        '[gguf] expected the gguf package, got none; try pip install "vksched[gguf]"'
    )


# Parts


def write_parts(folder: Path, drafts: list[Draft], name: str = "m") -> list[Path]:
    paths = [folder / f"{name}-{n + 1:05}-of-{len(drafts):05}.gguf" for n in range(len(drafts))]
    for path, draft in zip(paths, drafts, strict=True):
        path.write_bytes(draft.packed())
    return paths


def three() -> list[Draft]:
    return [part(0, 3, 4, ["a", "b"]), part(1, 3, 4, ["c"]), part(2, 3, 4, ["d"])]


@pytest.mark.parametrize("values", [0, 1, 2])
def test_a_model_in_parts_is_read_by_any_of_them(values: int, tmp_path: Path) -> None:
    paths = write_parts(tmp_path, three(), "a-00001-of-00009")
    file: GgufFile = read_gguf(paths[values])
    assert list(file.tensors) == ["a", "b", "c", "d"]
    assert [t.to_numpy()[0] for t in file.tensors.values()] == [0, 0, 1, 2]
    assert file.metadata["general.architecture"] == "llama"
    assert file.parts == tuple(paths) and file.path == paths[0]
    assert file.file_bytes == sum(p.stat().st_size for p in paths)


def renamed(folder: Path) -> Path:
    return write_parts(folder, three())[0].rename(folder / "model.gguf")


def absent(folder: Path) -> Path:
    paths = write_parts(folder, three())
    paths[1].unlink()
    return paths[0]


def with_last(*drafts: Draft) -> Callable[[Path], Path]:
    return lambda folder: write_parts(folder, [*three()[:2], *drafts])[0]


@pytest.mark.parametrize(
    ("built", "parts"),
    [
        (renamed, ("a name such as model-00001-of-00003.gguf", "'model.gguf'")),
        (absent, ("m-00002-of-00003.gguf", "expected a model file")),
        (with_last(part(1, 3, 4, ["d"])), ("m-00003-of-00003.gguf: expected 2 as 'split.no'",)),
        (with_last(part(2, 4, 4, ["d"])), ("expected 3 as 'split.count', got 4",)),
        (with_last(Draft()), ("expected 2 as 'split.no', got None",)),
        (with_last(part(2, 3, 4, ["a"])), ("'a' in two",)),
        (with_last(part(2, 3, 4, ["d", "e"])), ("expected 4 tensors in all parts", "got 5")),
        (with_last(replace(part(2, 3, 4, ["d"]), version=2)), ("expected version 3",)),
        (with_last(part(2, 3), part(3, 4)), ("of 3 with a name",)),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    built: Callable[[Path], Path], parts: tuple[str, ...], tmp_path: Path
) -> None:
    refused(built(tmp_path), *parts)
