"""ddddocr: reads captchas, and finds the targets of puzzles."""

import io

import ddddocr
import numpy as np
from measured import picture_of, report, scene
from PIL import Image


def png(picture: object) -> bytes:
    held = io.BytesIO()
    Image.fromarray(picture).save(held, "PNG")
    return held.getvalue()


readers = [ddddocr.DdddOcr(show_ad=False), ddddocr.DdddOcr(show_ad=False, beta=True)]
finder = ddddocr.DdddOcr(show_ad=False, det=True, ocr=False)
captchas = [png(picture_of([text], 160, 40)[25:95]) for text in ("7Gk2", "hello", "83914")]
letters = np.minimum(picture_of(["A   7", "   K   e"], 320, 48), 200)[:200]
puzzle = png(letters // 2 + scene(200) // 4)


def work() -> list[object]:
    read = [reader.classification(captcha) for reader in readers for captcha in captchas]
    return [read, finder.detection(puzzle)]


report(work)
