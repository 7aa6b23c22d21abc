"""faster-whisper: finds speech in sound before it would transcribe it."""

import numpy as np
from faster_whisper.vad import VadOptions, get_speech_timestamps, get_vad_model
from measured import report, sound

audio = sound(6, 16000)


def work() -> list[object]:
    padded = np.pad(audio, (0, -len(audio) % 512))
    steps = get_vad_model()(padded)
    return [np.ravel(steps), get_speech_timestamps(audio, VadOptions(threshold=0.1))]


report(work)
