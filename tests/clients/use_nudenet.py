"""nudenet: finds what it knows in a picture; its scores are compared, too."""

from measured import report, scene
from nudenet import NudeDetector

detector = NudeDetector()
picture = scene()


def work() -> list[object]:
    blob = detector.detect(picture)
    outputs = detector.onnx_session.run(None, {detector.input_name: _prepared()})
    return [blob, outputs[0].max(axis=-1)]


def _prepared() -> object:
    return picture.transpose(2, 0, 1)[None].astype("float32") / 255


report(work)
