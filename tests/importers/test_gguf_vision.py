"""Pictures: the encoder of a projector file and the logits of a text with pictures equal those of
the package `transformers`.
"""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gguf
import language
import numpy as np
import pytest
import vision
from conftest import Scheds
from gguf_files import Draft, Type, ValueType
from language.convert import draft
from test_gguf_golden import SETS, Placement, split_over
from vision.projectors import projector

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import DTypeError, ModelFormatError, ShapeError, UnsupportedOp
from vksched.importers.gguf.model import LanguageModel
from vksched.importers.gguf.vision import pixels as of_pixels
from vksched.importers.gguf.vision.vision_model import VisionModel

pytestmark = pytest.mark.one_set

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def golden() -> vision.VisionGolden:
    return vision.load()


def with_key(data: Draft, name: str, kind: ValueType | None, value: object = None) -> Draft:
    data = replace(data, keys=tuple(key for key in data.keys if key.name != name))
    return data if kind is None else data.with_key(name, kind, value)


def loaded(data: Draft) -> VisionModel:
    return vs.load_projector(data.packed())


def pixels() -> NDArray:
    return np.stack([language.values(f"pixels {n}", (3, 28, 28)) for n in range(2)])


def encoded(sched: vs.Scheduler, model: VisionModel) -> NDArray:
    run = sched.compile(model.encode(vs.input("pixels", (2, 3, 28, 28))))
    return np.asarray(run(pixels=pixels()))


def compare(golden: vision.VisionGolden, sched: vs.Scheduler) -> None:
    model = loaded(projector(golden))
    assert (model.tokens, model.width) == (4, 32)
    assert golden.features.std() > 0.5 < golden.logits.std()
    np.testing.assert_allclose(encoded(sched, model), golden.features, **CLOSE)


def test_tokens_of_pictures_equal_those_of_transformers(golden: vision.VisionGolden) -> None:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 2).mapping.values()
    known = {name for _, name in names}
    assert {name.rpartition(".")[0] for name in golden.tensors} <= known
    with vs.Scheduler(["cpu"]) as sched:
        compare(golden, sched)
        swapped = loaded(projector(golden, swapped=True))
        np.testing.assert_allclose(encoded(sched, swapped), golden.features, **CLOSE)


def test_so_they_do_on_devices(golden: vision.VisionGolden, scheds: Scheds) -> None:
    compare(golden, scheds[0])


def text_model(golden: vision.VisionGolden) -> LanguageModel:
    model = vs.load(draft(golden.text).packed())
    assert isinstance(model, LanguageModel)
    return model


def compare_logits(
    golden: vision.VisionGolden, sched: vs.Scheduler, placement: Placement = None
) -> None:
    """Compare the logits of a whole text."""
    model, encoder, ids = text_model(golden), loaded(projector(golden)), golden.ids.copy()
    is_picture = ids == 36
    assert is_picture.sum() == 2 * encoder.tokens
    ids[is_picture] = model.hyper.vocabulary + np.arange(is_picture.sum())
    shown = encoder.encode(vs.input("pixels", (2, 3, 28, 28)))
    logits = model.logits(vs.input("ids", (1, len(ids)), "int32"), shown)
    got = sched.compile(logits, placement=placement)(ids=ids[None], pixels=pixels())[0]
    np.testing.assert_allclose(got, golden.logits, **CLOSE)


def compare_steps(
    golden: vision.VisionGolden, sched: vs.Scheduler, placement: Placement = None
) -> None:
    """Compare the logits at the ends of parts of a text, each of tokens or of a picture."""
    model = text_model(golden)
    cache, runs = model.cache(40), {}
    starts = np.flatnonzero(golden.ids == 36)[::4].tolist()
    parts = [(0, starts[0]), (starts[0], 4), (starts[0] + 4, 2), (starts[1], 4), (starts[1] + 4, 5)]
    for picture, tokens in ((False, 8), (True, 4)):
        step = model.step(cache, tokens, picture=picture)
        runs[picture] = sched.compile(step.logits, updates=step.updates, placement=placement)
    for at, (start, count) in enumerate(parts):
        how = {"start": start, "count": count}
        if at % 2:
            got = runs[True](picture=golden.features[at // 2][None], **how)
        else:
            ids = np.zeros((1, 8), np.int32)
            ids[0, :count] = golden.ids[start : start + count]
            got = runs[False](ids=ids, **how)
        np.testing.assert_allclose(got[0], golden.logits[start + count - 1], **CLOSE)


def test_logits_of_a_text_with_pictures(golden: vision.VisionGolden) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        compare_logits(golden, sched)
        compare_steps(golden, sched)


@pytest.mark.thorough
@pytest.mark.parametrize("devices", SETS, indirect=True)
def test_logits_with_pictures_on_devices_and_split_over_two(
    golden: vision.VisionGolden, devices: list[str]
) -> None:
    with vs.Scheduler(devices) as sched:
        compare_logits(golden, sched, split_over(devices))
        compare_steps(golden, sched, split_over(devices))


def test_steps_with_pictures_are_of_one_part(golden: vision.VisionGolden) -> None:
    model = text_model(golden)
    cache = model.cache(40)
    with pytest.raises(ShapeError, match="with a picture, of at most 7 tokens, got 1 and 8"):
        model.step(cache, 8, picture=True)
    with pytest.raises(ShapeError, match="one part with a picture, .* got 2 and 4"):
        model.step(cache, 4, 2, picture=True)


# -- pixels ----------------------------------------------------------------------------------------


def small(golden: vision.VisionGolden, **arrays: list[float]) -> VisionModel:
    """Return an encoder of pictures of 14 x 14 pixels. arrays: other values of keys."""
    data, name = projector(golden), "v.position_embd.weight"
    data = replace(data, infos=tuple(info for info in data.infos if info.name != name))
    data = data.with_tensor(name, (4, 24), Type.F32, bytes(4 * 24 * 4))
    data = with_key(data, "clip.vision.image_size", ValueType.UINT32, 14)
    for key, values in arrays.items():
        data = with_key(data, f"clip.vision.{key}", None)
        data = data.with_key(f"clip.vision.{key}", ValueType.ARRAY, values, ValueType.FLOAT32)
    return loaded(data)


def test_pixels_equal_those_of_transformers(golden: vision.VisionGolden, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures need the extra 'vision'")
    model, array = small(golden), vision.picture()
    found = image.fromarray(array)
    found.save(tmp_path / "p.png")
    data = io.BytesIO()
    found.save(data, "png")
    for picture in (array, found, tmp_path / "p.png", str(tmp_path / "p.png"), data.getvalue()):
        got = model.pixels(picture)
        assert got.shape == model.pixels_shape and got.dtype == np.float32
        np.testing.assert_allclose(got, golden.pixels, atol=1e-5)
    found.convert("L").save(tmp_path / "grey.png")
    assert model.pixels(tmp_path / "grey.png").shape == (3, 14, 14)
    for wrong in (array.astype(np.float32), array[:, :, 0], 5, None):
        with pytest.raises(DTypeError, match=r"^\[vision\] expected .*, got "):
            model.pixels(wrong)
    for bad in (b"no picture", data.getvalue()[:40], b""):
        with pytest.raises(ModelFormatError, match="a picture as PNG, JPEG, .* or BMP, got "):
            model.pixels(bad)
    with pytest.raises(ModelFormatError, match=r"of 1 to \d+ pixels, got 3 x 0"):
        model.pixels(np.zeros((0, 3, 3), np.uint8))
    with pytest.raises(FileNotFoundError):
        model.pixels(tmp_path / "none.png")


def test_pictures_have_all_of_their_tones_and_stand_upright(golden: vision.VisionGolden) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures need the extra 'vision'")
    model, array = small(golden), vision.picture()
    tones = array[:, :, 0].astype(np.uint16)
    plain = model.pixels(np.repeat(array[:, :, :1], 3, 2))
    grey = image.fromarray(tones * 257)
    data = io.BytesIO()
    grey.save(data, "png")
    for picture in (grey, data.getvalue()):
        np.testing.assert_array_equal(model.pixels(picture), plain)
    data, exif = io.BytesIO(), image.Exif()
    exif[0x0112] = 6  # rotate the picture by 90 degrees clockwise
    image.fromarray(array).save(data, "png", exif=exif)
    upright = np.ascontiguousarray(np.rot90(array, -1))
    for picture in (data.getvalue(), image.open(data)):
        np.testing.assert_array_equal(model.pixels(picture), model.pixels(upright))


def test_pictures_of_other_formats_and_sizes_are_refused(
    golden: vision.VisionGolden, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures need the extra 'vision'")
    model, found = small(golden), image.fromarray(vision.picture())
    for form in ("eps", "tiff"):
        data = io.BytesIO()
        found.save(data, form)
        with pytest.raises(ModelFormatError, match="or BMP, got UnidentifiedImageError"):
            model.pixels(data.getvalue())
    with pytest.raises(ModelFormatError, match="pixels, got 0 x 0"):
        model.pixels(image.new("RGB", (0, 0)))
    monkeypatch.setattr("vksched.importers.gguf.vision.pixels.MAX_PIXELS", 99)
    with pytest.raises(ModelFormatError, match=r"1 to 99 pixels, got \d+ x \d+"):
        model.pixels(found)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "kind", "value", "match"),
    [
        (
            "projector_type",
            ValueType.STRING,
            "ldp",
            "one of gemma3, .*, got 'ldp'; try a",
        ),
        ("projector_type", None, None, "'clip.projector_type': expected one of gemma3, .*, got ''"),
        ("has_vision_encoder", ValueType.BOOL, False, "has_vision_encoder': expected true"),
        ("has_vision_encoder", ValueType.UINT32, 1, "expected true or false, got 1"),
        ("use_gelu", None, None, "'clip.use_gelu': expected true"),
        ("vision.image_size", ValueType.UINT32, 1 << 20, "whole number of 1 to 16384"),
        (
            "vision.image_size",
            ValueType.UINT32,
            16380,
            r"'v.position_embd.weight' of shape \(5475600, 24\), got \(16, 24\)",
        ),
        ("vision.patch_size", ValueType.UINT32, 14, r"'v.patch_embd.weight' of shape \(24, 3, 14"),
        ("vision.feed_forward_length", ValueType.UINT32, 24, "another size than embedding_length"),
        (
            "vision.image_size",
            ValueType.UINT32,
            30,
            "patch_size': expected a divisor of image_size",
        ),
        ("vision.patch_size", ValueType.INT32, 0, "whole number of 1 to 16384, got 0"),
        ("vision.projector.scale_factor", ValueType.UINT32, 3, "scale_factor': expected a divisor"),
        ("vision.attention.head_count", ValueType.UINT32, 5, "divisor of embedding_length, 24"),
        ("vision.block_count", None, None, "'clip.vision.block_count'"),
        ("vision.attention.layer_norm_epsilon", ValueType.FLOAT32, -1.0, "a float32 over 0"),
        ("vision.image_mean", ValueType.FLOAT32, 0.5, "image_mean': expected 3 numbers, got 0.5"),
        ("vision.image_std", None, None, "image_std': expected 3 numbers, got None"),
        ("vision.projection_dim", ValueType.UINT32, 31, r"'mm.input_projection.weight' of shape"),
        ("vision.block_count", ValueType.UINT32, 1, "got also 'v.blk.1."),
        ("vision.feed_forward_length", ValueType.UINT32, 41, r"of shape \(41, 24\), got"),
    ],
)
def test_wrong_keys_are_named(
    golden: vision.VisionGolden, key: str, kind: ValueType | None, value: object, match: str
) -> None:
    data = with_key(projector(golden), f"clip.{key}", kind, value)
    with pytest.raises(ModelFormatError, match=match):
        loaded(data).encode(vs.input("pixels", (2, 3, 28, 28)))


def test_pixels_that_leave_float32_are_refused(golden: vision.VisionGolden) -> None:
    for values in ({"image_std": [0.5, 1e-40, 0.5]}, {"image_std": [0.0] * 3}):
        with pytest.raises(
            ModelFormatError, match=r"image_std': expected numbers that keep .* got"
        ):
            small(golden, **values)


def test_other_files_and_shapes_are_named(golden: vision.VisionGolden) -> None:
    text, encoder = draft(golden.text), loaded(projector(golden))
    with pytest.raises(ModelFormatError, match="a projector file .*, got 'gemma3'; try vs.load"):
        vs.load_projector(text.packed())
    with pytest.raises(ShapeError, match=r"pixels \(b, 3, 28, 28\) of float32, got"):
        encoder.encode(vs.input("pixels", (3, 28, 28)))
    model = vs.load(text.packed())
    assert isinstance(model, LanguageModel)
    ids = vs.input("ids", (1, 9), "int32")
    with pytest.raises(ShapeError, match=r"\(pictures, tokens, 32\) of float32, got"):
        model.logits(ids, vs.input("pictures", (2, 4, 31)))
    other = vs.load(draft(language.load("gemma2")).packed())
    assert isinstance(other, LanguageModel)
    with pytest.raises(UnsupportedOp, match="takes pictures, got 'gemma2'; try gemma3"):
        other.logits(ids, vs.input("pictures", (2, 4, 32)))


def progressive(side: int, size: int) -> bytes:
    """Return a JPEG file of `size` bytes, most of which are scans of all blocks in few bytes."""
    pillow = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    pillow.fromarray(np.zeros((side, side, 3), np.uint8)).save(out, "jpeg", progressive=True)
    data = out.getvalue()
    scan = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + scan * ((size - len(data)) // len(scan)) + data[-2:]


def test_a_picture_that_decodes_slowly_is_refused(golden: vision.VisionGolden) -> None:
    """Without a limit this file takes seconds, and one of 4096 x 4096 pixels minutes."""
    model = loaded(projector(golden))
    with pytest.raises(ModelFormatError, match="decoded within 0.05 s, got one that takes longer"):
        model.pixels(progressive(512, 150_000), max_seconds=0.05)
    few = progressive(512, 3000)
    assert np.array_equal(model.pixels(few, max_seconds=60), model.pixels(few))


def test_webp_files_decode_at_once(
    golden: vision.VisionGolden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their pixels are bounded before, and their time is checked after."""
    pillow = pytest.importorskip("PIL.Image")
    webp = pytest.importorskip("PIL.WebPImagePlugin")
    model, out = loaded(projector(golden)), io.BytesIO()
    pillow.fromarray(np.zeros((60, 70, 3), np.uint8)).save(out, "webp", lossless=True)
    data = out.getvalue()
    fitting_s = 60 * 70 / of_pixels.WEBP_PIXELS
    with pytest.raises(ModelFormatError, match="1 to 4199 pixels, got 70 x 60; try it as PNG"):
        model.pixels(data, max_seconds=fitting_s - 0.5 / of_pixels.WEBP_PIXELS)
    with pytest.raises(ModelFormatError, match="of 1 to 100 pixels, got 70 x 60$"):
        model.pixels(data, 100, max_seconds=60)
    found, now_s = model.pixels(data), [0.0]
    monkeypatch.setattr(of_pixels, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    assert np.array_equal(model.pixels(data, max_seconds=2), found)
    load = webp.WebPImageFile.load

    def load_slowly(image: object) -> object:
        now_s[0] = 3.0
        return load(image)

    monkeypatch.setattr(webp.WebPImageFile, "load", load_slowly)
    with pytest.raises(ModelFormatError, match="decoded within 2 s, got one that takes longer"):
        model.pixels(data, max_seconds=2)


def test_wide_rows_of_bmp_are_read_in_linear_time() -> None:
    pillow = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pillow.new("RGB", (1 << 22, 1), (10, 20, 30)).save(file, "BMP")
    begin = time.process_time()
    found = of_pixels._opened(file.getvalue(), 1 << 22, max_seconds=60)
    assert time.process_time() - begin < 1
    assert found.size == (1 << 22, 1) and found.getpixel((1 << 19, 0)) == (10, 20, 30)
