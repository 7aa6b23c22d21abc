"""captcha-whisperer: reads a captcha, and says how sure it is of each letter."""

import io

from captcha_whisperer import CaptchaRecognizer
from measured import picture_of, report
from PIL import Image

recognizer = CaptchaRecognizer()
file = io.BytesIO()
Image.fromarray(picture_of(["7kPm"], width=160)).save(file, "png")


def work() -> object:
    return recognizer.recognize_bytes(file.getvalue())


report(work)
