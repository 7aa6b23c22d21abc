"""rapidocr: the same as rapidocr-onnxruntime with newer models."""

from measured import picture_of, report
from rapidocr import RapidOCR

ocr = RapidOCR()
picture = picture_of(["Hello World 2024", "vulkan graphs", "Invoice No. 73"])


def work() -> list[object]:
    found = ocr(picture)
    return [found.boxes, list(found.txts), [float(score) for score in found.scores]]


report(work)
