"""brainmaze-eeg-models: finds seizures and sleep spindles in five minutes of a drawn signal."""

import numpy as np
from brainmaze_eeg_models.seizure import predict_channel_seizure_probability
from brainmaze_eeg_models.spindles import SpindleDetector
from measured import report

RATE = 250
rng = np.random.default_rng(5)
t = np.arange(300 * RATE) / RATE
signal = 20 * np.cumsum(rng.standard_normal(t.size)) / np.sqrt(t.size) + rng.standard_normal(t.size)
signal += 15 * np.sin(2 * np.pi * 13 * t) * (t % 20 < 1)
detector = SpindleDetector(model="eeg")


def work() -> list[object]:
    times, probable = predict_channel_seizure_probability(signal, RATE, model="modelA")
    spindles = detector.detect(signal[: 60 * RATE], RATE)
    return [times, probable, spindles.channel_intervals(0), spindles.not_evaluated[0]]


report(work, repeats=1)
