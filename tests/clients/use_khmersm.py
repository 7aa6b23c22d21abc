"""khmersm: parts Khmer text into words; its weights lie in a second file."""

from khmersm import Segmenter
from measured import report

TEXT = "ខ្ញុំស្រលាញ់កម្ពុជា i love Cambodia ភាសាខ្មែរជាភាសាផ្លូវការរបស់ប្រទេសកម្ពុជា"
segmenter = Segmenter()


def work() -> object:
    return segmenter.segment(TEXT)


report(work)
