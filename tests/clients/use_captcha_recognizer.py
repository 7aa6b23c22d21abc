"""captcha-recognizer: finds the gap of a sliding puzzle."""

from captcha_recognizer.slider import Slider
from measured import report, scene

slider = Slider()
puzzle = scene(160, 320)
puzzle[50:100, 200:250] //= 3


def work() -> list[object]:
    boxes, masks = slider.predict(puzzle, conf=0.05)[0]
    return [boxes, masks.sum(axis=(1, 2))]


report(work)
