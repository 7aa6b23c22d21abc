"""basic-pitch: writes the notes of a melody."""

import tempfile
import wave

import numpy as np
from basic_pitch import FilenameSuffix, build_icassp_2022_model_path
from basic_pitch.inference import Model, predict
from measured import report

RATE = 22050
t = np.arange(RATE) / RATE
melody = np.concatenate([np.sin(2 * np.pi * 440 * 2 ** (n / 12) * t) for n in (0, 4, 7)])
path = tempfile.mktemp(".wav")
with wave.open(path, "wb") as file:
    file.setnchannels(1)
    file.setsampwidth(2)
    file.setframerate(RATE)
    file.writeframes((melody * 20000).astype("<i2").tobytes())
model = Model(build_icassp_2022_model_path(FilenameSuffix.onnx))


def work() -> list[object]:
    outputs, _, notes = predict(path, model)
    return [outputs["note"], [[*note[:3], float(note[3])] for note in notes]]


report(work)
