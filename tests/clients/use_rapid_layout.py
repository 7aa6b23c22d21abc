"""rapid-layout: finds titles, paragraphs and pictures on a page."""

import numpy as np
from measured import picture_of, report, scene
from rapid_layout import RapidLayout

engine = RapidLayout(conf_thresh=0.2)
words = "some words that fill a line of the page"
page = np.concatenate(
    [picture_of(["A Title"], 640, 40), picture_of([words] * 8, 640, 18), scene(300, 640)]
)


def work() -> list[object]:
    found = engine(page)
    scores = [float(score) for score in found.scores]
    return [[[float(v) for v in box] for box in found.boxes], list(found.class_names), scores]


report(work)
