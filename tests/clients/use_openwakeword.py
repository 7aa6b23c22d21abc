"""openwakeword: listens for all its wake words, 80 ms at a time."""

import numpy as np
from measured import report, sound
from openwakeword.model import Model

audio = (sound(2, 16000) * 32767).astype(np.int16)
model = Model()


def work() -> list[object]:
    model.reset()
    model.preprocessor.__init__()
    return [model.predict(audio[at : at + 1280]) for at in range(0, audio.size - 1279, 1280)]


report(work)
