"""rapidocr-onnxruntime: finds lines of text, turns them the right way and reads them."""

from measured import picture_of, report
from rapidocr_onnxruntime import RapidOCR

ocr = RapidOCR()
picture = picture_of(["Hello World 2024", "vulkan graphs", "Invoice No. 73"])


def work() -> list[object]:
    lines, _ = ocr(picture)
    return [[box, text, float(score)] for box, text, score in lines]


report(work)
