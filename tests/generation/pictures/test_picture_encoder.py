"""The encoder of pictures: equal pictures have equal ids, and are encoded once."""

from __future__ import annotations

import numpy as np
import pytest
from vision.chats import chat_model, encoder, picture

import vksched as vs
from vksched.common.errors import ModelFormatError
from vksched.generation.pictures.picture_encoder import PictureEncoder

pytestmark = pytest.mark.one_set


def test_recent_pictures_are_not_encoded_again() -> None:
    pytest.importorskip("PIL.Image", reason="pictures need the extra 'vision'")
    golden, vision = encoder()
    size = vision.tokens * vision.width * 4
    with vs.Scheduler(["cpu"]) as sched:
        pictures = PictureEncoder(sched, vision, chat_model(golden), cache_bytes=2 * size)
        one, same, two, three = (pictures.open(picture(seed)) for seed in (1, 1, 2, 3))
        assert one.tokens.ids == same.tokens.ids and one.tokens.key != two.tokens.key
        first = pictures.encode(one)
        assert first.rows.shape == (vision.tokens, vision.width)
        assert pictures.encode(same) is first
        pictures.encode(two)
        assert pictures.encode(one) is first
        pictures.encode(three)
        assert pictures.encode(one) is first
        second = pictures.encode(two)  # the oldest one was dropped
        assert pictures.encode(two) is second
        pictures.close()
        again = pictures.encode(one)
        assert again is not first
        np.testing.assert_array_equal(again.rows, first.rows)
        with pytest.raises(ModelFormatError, match="of 1 to 700 pixels, got 28 x 28"):
            pictures.open(picture(1), 700)
