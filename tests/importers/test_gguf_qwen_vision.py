"""Pictures of Qwen VL: tokens, pixels and logits equal those of the package `transformers`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import vision
from gguf_files import Draft, ValueType
from test_gguf_golden import SETS, Placement, split_over
from test_gguf_vision import with_key
from vision import qwen

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import ModelFormatError, ShapeError
from vksched.generation.pictures.prompt_pictures import PromptPictures
from vksched.importers.gguf.architectures.positions import axes_of_pairs
from vksched.importers.gguf.hparams.rope import Rope
from vksched.importers.gguf.vision.pixels import fitting_size
from vksched.importers.gguf.vision.qwen_vision import window_order

pytestmark = pytest.mark.one_set

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def encoded(sched: vs.Scheduler, golden: qwen.QwenGolden, fused: bool = False) -> NDArray:
    """Return the rows of the tokens of both pictures."""
    model, out = qwen.encoder(golden, fused), []
    for own in qwen.pixels():
        run = sched.compile(model.encode(vs.input("pixels", (1, *own.shape))))
        out.append(np.asarray(run(pixels=own[None]))[0])
        assert model.tokens_of(own.shape)[0] == len(out[-1]) and out[-1].shape[1] == model.width
    return np.concatenate(out)


def compare_logits(
    sched: vs.Scheduler, golden: qwen.QwenGolden, placement: Placement = None
) -> None:
    """Compare the logits of whole texts."""
    model, (ids, shown) = qwen.language_model(golden), golden.pictures()
    numbers, most = golden.ids.copy(), max(each.tokens.count for each in shown)
    tokens = np.zeros((len(shown), most, golden.features.shape[1]), np.float32)
    for at, each in enumerate(shown):
        tokens[at, : each.tokens.count] = each.rows
    at = numbers == qwen.PICTURE
    places = [n * most + np.arange(each.tokens.count) for n, each in enumerate(shown)]
    numbers[at] = model.hyper.vocabulary + np.concatenate(places)
    logits = model.logits(
        vs.input("ids", (1, len(ids)), "int32"),
        vs.input("shown", tokens.shape),
        vs.input("positions", (1, 3, len(ids)), "int32"),
    )
    got = sched.compile(logits, placement=placement)(
        ids=numbers[None], shown=tokens, positions=qwen.positions(ids, shown)[None]
    )
    np.testing.assert_allclose(got[0], golden.logits, **CLOSE)


def compare_steps(
    sched: vs.Scheduler, golden: qwen.QwenGolden, placement: Placement = None
) -> None:
    """Compare the logits of steps. Text is read token by token, a picture in two steps."""
    model, (ids, shown) = qwen.language_model(golden), golden.pictures()
    places, cache = PromptPictures(ids, shown), model.cache(40)
    runs = {}
    for picture, tokens in ((False, 1), (True, 9)):
        step = model.step(cache, tokens, picture=picture, shifted=True)
        runs[picture] = sched.compile(step.logits, updates=step.updates, placement=placement)
    for part in places.parts(0, len(ids)):
        start = part.start
        while start < part.end:
            if part.picture is None:
                own = {"ids": np.array([[ids[start]]], np.int32)}
                got = runs[False](start=start, count=1, shift=places.shift_at(start), **own)
                start += 1
            else:
                (read,) = places.parts(start, min(start + 9, part.end))
                count = read.end - start
                rows = np.pad(read.rows, ((0, 9 - count), (0, 0)))
                at = np.pad(places.positions(read), ((0, 0), (0, 9 - count)))
                own = {"picture": rows[None], "positions": at[None]}
                got = runs[True](start=start, count=count, **own)
                start += count
            np.testing.assert_allclose(got[0], golden.logits[start - 1], **CLOSE)


@pytest.mark.parametrize("name", qwen.NAMES)
def test_tokens_of_pictures_equal_those_of_transformers(name: str) -> None:
    golden = qwen.load(name)
    assert golden.features.std() > 0.5 < golden.logits.std()
    with vs.Scheduler(["cpu"]) as sched:
        for fused in (False, True):
            np.testing.assert_allclose(encoded(sched, golden, fused), golden.features, **CLOSE)


@pytest.mark.parametrize("name", qwen.NAMES)
def test_logits_of_a_text_with_pictures(name: str) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        compare_logits(sched, qwen.load(name))
        compare_steps(sched, qwen.load(name))


@pytest.mark.thorough
@pytest.mark.parametrize("devices", SETS, indirect=True)
@pytest.mark.parametrize("name", qwen.NAMES)
def test_so_they_do_on_devices_and_split_over_two(name: str, devices: list[str]) -> None:
    golden, placement = qwen.load(name), split_over(devices)
    with vs.Scheduler(devices) as sched:
        np.testing.assert_allclose(encoded(sched, golden), golden.features, **CLOSE)
        compare_logits(sched, golden, placement)
        compare_steps(sched, golden, placement)


def test_pixels_equal_those_of_transformers() -> None:
    pytest.importorskip("PIL.Image", reason="pictures need the extra 'vision'")
    golden = qwen.load("qwen2vl")
    data = with_key(qwen.projector(golden), "clip.vision.image_max_pixels", ValueType.UINT32, 256)
    got = vs.load_projector(data.packed()).pixels(vision.picture())
    assert got.shape == golden.pixels.shape == (3, 8, 16)
    np.testing.assert_allclose(got, golden.pixels, atol=1e-5)


def test_sizes_of_pictures() -> None:
    hyper = qwen.encoder(qwen.load("qwen3vl")).hyper
    assert hyper.pixels == (64, 960)
    sizes = {
        (64, 64): (24, 24),
        (1, 1): (8, 8),
        (20, 9): (16, 8),
        (4000, 30): (120, 8),
        (30, 4000): (8, 120),
    }
    for (width, height), wanted in sizes.items():
        assert fitting_size(width, height, hyper) == wanted
    with pytest.raises(ModelFormatError, match="a ratio of at most 200, got 201 x 1"):
        fitting_size(201, 1, hyper)


def test_windows_at_edges_are_smaller() -> None:
    order, groups = window_order(3, 5, 2)
    assert groups == [(1, 1), (3, 2), (2, 4)]
    assert order.tolist() == [14, 4, 9, 10, 11, 12, 13, 0, 1, 5, 6, 2, 3, 7, 8]
    assert window_order(2, 2, 2)[1] == [(1, 4)]


def test_axes_of_pairs() -> None:
    def axes(sections: Sequence[int], mrope: str) -> list[int]:
        rope = Rope(1e4, 16, "none", 1.0, 64, 1.0, 0.0, 16, sections=tuple(sections))
        return [int(each) for each in axes_of_pairs(rope, mrope)]

    assert axes((3, 3, 2), "sections") == [0, 0, 0, 1, 1, 1, 2, 2]
    assert axes((3, 3, 2), "interleaved") == [0, 1, 2, 0, 1, 2, 0, 1]
    with pytest.raises(ModelFormatError, match="8 pairs in all sections, got 7"):
        axes((3, 3, 1), "sections")


@pytest.mark.parametrize(
    ("name", "key", "kind", "value", "match"),
    [
        ("qwen25vl", "window_size", ValueType.UINT32, 7, "at least 8, the side of a merged"),
        ("qwen25vl", "n_wa_pattern", None, None, "'clip.vision.n_wa_pattern'"),
        ("qwen2vl", "attention.head_count", ValueType.UINT32, 3, "heads of a multiple of 4 elem"),
        ("qwen2vl", "image_min_pixels", ValueType.UINT32, 961, "whole number of 961 to"),
        ("qwen2vl", "spatial_merge_size", ValueType.UINT32, 17, "whole number of 1 to 16, got 17"),
        ("qwen3vl", "image_size", ValueType.UINT32, 24, "'v.position_embd.weight' of shape"),
        ("qwen3vl", "patch_size", ValueType.UINT32, 5, "'v.patch_embd.weight' of shape"),
        ("qwen3vl", "block_count", ValueType.UINT32, 2, "2 times true or false"),
        ("qwen3vl", "projection_dim", ValueType.UINT32, 31, "'v.deepstack.0.fc2.weight' of shape"),
        ("qwen3vl", "is_deepstack_layers", None, None, "got also 'v.deepstack.0"),
    ],
)
def test_wrong_keys_are_named(
    name: str, key: str, kind: ValueType | None, value: object, match: str
) -> None:
    data: Draft = with_key(qwen.projector(qwen.load(name)), f"clip.vision.{key}", kind, value)
    with pytest.raises(ModelFormatError, match=match):
        vs.load_projector(data.packed()).encode(vs.input("pixels", (1, 3, 16, 16)))


def test_shapes_and_models_are_checked() -> None:
    golden = qwen.load("qwen3vl")
    model, own = qwen.language_model(golden), qwen.encoder(golden)
    with pytest.raises(ShapeError, match="with sides of a multiple of 8, got"):
        own.encode(vs.input("pixels", (1, 3, 16, 12)))
    ids, shown = vs.input("ids", (1, 9), "int32"), vs.input("shown", (1, 4, 96))
    with pytest.raises(ShapeError, match=r"positions \(1, 3, 9\) of int32 of this model"):
        model.logits(ids, shown)
    with pytest.raises(ShapeError, match=r"\(pictures, tokens, 96\) of float32, got"):
        model.logits(ids, vs.input("shown", (1, 4, 32)))
    own.check_model("qwen3vl", 96)
    with pytest.raises(ModelFormatError, match="of qwen3vl or qwen3vlmoe with width 96"):
        own.check_model("qwen3vl", 32)
    sections = "qwen3vl.rope.dimension_sections"
    plain = vs.load(with_key(qwen.model_draft(golden), sections, None).packed())
    assert not plain.has_mrope  # type: ignore[union-attr]
    with pytest.raises(ModelFormatError, match=f"the key '{sections}' of a model that takes"):
        plain.logits(ids, shown)  # type: ignore[union-attr, call-arg]
