"""swift-f0: follows the pitch of a voice, at once and chunk by chunk."""

import numpy as np
from measured import report, sound
from swift_f0 import SwiftF0, concat

detector = SwiftF0()
audio = sound(3, 16000)


def work() -> list[object]:
    whole = detector.detect(audio, 16000)
    stream = detector.stream()
    parts = [stream.push(piece, 16000) for piece in np.array_split(audio, 10)]
    joined = concat([*parts, stream.flush()])
    return [[r.pitch_hz, r.confidence] for r in (whole, joined)]


report(work)
