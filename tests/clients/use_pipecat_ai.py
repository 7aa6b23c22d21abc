"""pipecat-ai: its smart-turn tells whether somebody has finished speaking.

What is compared is the decision. The network's activations are rounded to 8 bits time and again:
with noise of 1e-6 on its input, onnxruntime's own probabilities differ by 0.06 and more.
"""

from loguru import logger
from measured import report, sound

logger.remove()

from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import (  # noqa: E402
    LocalSmartTurnAnalyzerV3,
)

turn = LocalSmartTurnAnalyzerV3()
turn.set_sample_rate(16000)
speech = sound(9, 16000)


def work() -> list[object]:
    found = [turn._predict_endpoint(speech[: 16000 * seconds]) for seconds in (1, 2, 5)]
    return [[each["prediction"], each["probability"] < 0.3] for each in found]


report(work)
