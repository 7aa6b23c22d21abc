"""luscinia: tells which vowel of a Ukrainian word is stressed, by an ensemble of trees."""

from luscinia import LusciniaPredictor
from measured import report

WORDS = (
    "університет мама дитина виходити перекотиполе синхрофазотрон незалежність черевики замок "
    "посередник вертоліт ластівка соняшник обчислювати паровоз бібліотека навпростець веселка"
).split()
predictor = LusciniaPredictor()


def work() -> list[object]:
    return [predictor.predict_batch(WORDS, [pos] * len(WORDS)) for pos in ("X", "NOUN", "VERB")]


report(work)
