"""silero-vad: tells speech from silence, 32 ms at a time, and keeps a state between them."""

import torch
from measured import report, sound
from silero_vad import get_speech_timestamps, load_silero_vad

model = load_silero_vad(onnx=True)
audio = torch.from_numpy(sound(2, 16000))


def work() -> list[object]:
    model.reset_states()
    steps = [model(piece, 16000).item() for piece in audio.split(512) if len(piece) == 512]
    return [steps, get_speech_timestamps(audio, model, threshold=0.1)]


report(work)
