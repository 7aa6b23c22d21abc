"""arabic-name-romanizer: writes Arabic names in Latin letters; these are in no dictionary."""

from arabic_name_romanizer import transliterate
from measured import report

NAMES = ("زغبيطان", "قلشومة", "بهندورة الشلغومي", "محمد صلاح")


def work() -> list[object]:
    found = [transliterate(name, top_k=3) for name in NAMES]
    return [[[each.text, each.score] for each in candidates] for candidates in found]


report(work)
