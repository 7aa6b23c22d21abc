"""Pictures of Qwen VL in the slots of a KV cache: positions after pictures differ from indices."""

from __future__ import annotations

import numpy as np
import pytest
from vision import qwen

import vksched as vs
from vksched.generation.batching.engine_core import EngineCore
from vksched.generation.batching.token_stream import TokenStream
from vksched.generation.completion import CompletionRequest
from vksched.generation.pictures.picture_encoder import PictureEncoder
from vksched.generation.pictures.prompt_pictures import PromptPictures
from vksched.generation.slot_steps import SlotSteps

pytestmark = pytest.mark.one_set

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize(("name", "slots"), [("qwen2vl", 1), ("qwen3vl", 2)])
def test_logits_equal_those_of_the_whole_text(name: str, slots: int) -> None:
    golden = qwen.load(name)
    ids, shown = golden.pictures()
    places, start = PromptPictures(ids, shown), len(ids) - 2
    assert places.shift == (5 - 15) + (2 - 4)
    with vs.Scheduler(["cpu"]) as sched:
        steps = SlotSteps(sched, qwen.language_model(golden), 40, slots, reads_pictures=True)
        last = slots - 1
        logits = steps.prefill(last, ids[:start], 0, pictures=places)
        np.testing.assert_allclose(logits, golden.logits[start - 1], **CLOSE)
        if slots == 2:  # a text without pictures in the same step
            steps.prefill(0, ids[:3], 0)
            one = steps.decode([0, 1], [3, ids[start]], [3, start], shifts=[0, places.shift])
            alone = steps.decode([0], [3], [3])
            np.testing.assert_allclose(one[0], alone[0], **CLOSE)
        else:
            one = steps.decode([0], [ids[start]], [start], shifts=[places.shift])
        np.testing.assert_allclose(one[last], golden.logits[start], **CLOSE)
        two = steps.decode([last], [ids[-1]], [start + 1], shifts=[places.shift])
        np.testing.assert_allclose(two[0], golden.logits[-1], **CLOSE)
        steps.close()


def test_an_engine_goes_on_within_a_picture() -> None:
    golden = qwen.load("qwen3vl")
    ids, shown = golden.pictures()
    row = golden.logits[-1].astype(np.float64)
    wanted = np.sort(row - row.max() - np.log(np.exp(row - row.max()).sum()))[:-5:-1]
    request = CompletionRequest(tuple(ids), 1, logprobs=4, pictures=tuple(shown))
    with vs.Scheduler(["cpu"]) as sched:
        steps = SlotSteps(sched, qwen.language_model(golden), 40, 1, reads_pictures=True)
        core = EngineCore(steps, reuse_decoded=True)
        for retained in (0, 12, 24, len(ids)):  # 12 and 24 are within pictures
            core.truncate(0, retained)
            stream = TokenStream(core.submit(request), golden, core.step)
            (output,) = stream
            assert output.logprobs is not None
            found = [chance for _, chance in output.logprobs.top]
            np.testing.assert_allclose(found, wanted, **CLOSE)
            assert stream.cached_tokens == min(retained, len(ids) - 1)
        core.close()


def test_an_encoder_has_a_graph_for_each_size() -> None:
    pytest.importorskip("PIL.Image", reason="pictures need the extra 'vision'")
    golden = qwen.load("qwen25vl")
    model, vision = qwen.language_model(golden), qwen.encoder(golden)
    with vs.Scheduler(["cpu"]) as sched:
        pictures = PictureEncoder(sched, vision, model)
        wide, high = (np.full(shape, 99, np.uint8) for shape in ((8, 24, 3), (16, 8, 3)))
        for picture, grid in ((wide, (1, 3)), (high, (2, 1)), (wide, (1, 3))):
            opened = pictures.open(picture)
            assert opened.tokens.grid == grid and not opened.tokens.is_whole
            assert pictures.encode(opened).rows.shape == (grid[0] * grid[1], 32)
        pictures.close()
