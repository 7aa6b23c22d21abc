"""onnx-asr: brings sound of five rates to 16 kHz."""

import numpy as np
from measured import report, sound
from onnx_asr.preprocessors.resampler import Resampler

resampler = Resampler(16000, {"providers": ["CPUExecutionProvider"]})
waves = {rate: sound(2, rate)[None] for rate in (8000, 22050, 24000, 44100, 48000)}


def work() -> list[object]:
    found = []
    for rate, wave in waves.items():
        resampled, length = resampler(wave, np.array([wave.shape[1]], np.int64), rate)
        found.append([resampled[0, ::50], length])
    return found


report(work)
