"""Shared by all programs here: inputs that need no file, and the report to clients.py."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def report(work: Callable[[], Any], repeats: int = 3) -> None:
    """Call what is measured and prints its result, with the seconds of the first and later runs:
    those of the processor, as other programs may run beside this one.
    """
    times = []
    for _ in range(1 + repeats):
        started = time.process_time()
        result = work()
        times.append(time.process_time() - started)
    import onnxruntime

    native = [n for n, m in sys.modules.items() if _is_native(n, m)]
    found = {
        "result": plain(result),
        "first_s": times[0],
        "median_s": statistics.median(times[1:]),
        "build": onnxruntime.get_build_info(),
        "native": native,
        "providers": onnxruntime.get_available_providers(),
    }
    print("\n" + json.dumps(found))


def _is_native(name: str, module: Any) -> bool:
    """Return True if a module is one of onnxruntime's own compiled modules."""
    file = getattr(module, "__file__", None) or ""
    return name.startswith("onnxruntime") and file.endswith((".so", ".pyd"))


def plain(value: Any) -> Any:
    """Return a result as JSON has it."""
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def picture_of(lines: Sequence[str], width: int = 480, size: int = 28) -> np.ndarray:
    """Return lines of text as a picture, black on white: (height, width, 3), uint8."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size)
    image = Image.new("RGB", (width, 2 * size * (len(lines) + 1)), "white")
    draw = ImageDraw.Draw(image)
    for number, text in enumerate(lines):
        draw.text((size, size * (2 * number + 1)), text, fill="black", font=font)
    return np.asarray(image).copy()


def scene(height: int = 320, width: int = 320) -> np.ndarray:
    """Return a picture with shapes and noise, the same each time: (height, width, 3), uint8."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[:height, :width]
    image = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1)
    for _ in range(12):
        at, radius = rng.integers(0, (height, width)), rng.integers(10, height // 5)
        image[(y - at[0]) ** 2 + (x - at[1]) ** 2 < radius**2] = rng.integers(0, 256, 3)
    noise = rng.integers(-12, 13, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def sound(seconds: float, rate: int) -> np.ndarray:
    """Return tones that come and go as syllables do, over noise: (samples,), float32."""
    rng = np.random.default_rng(11)
    t = np.arange(int(seconds * rate)) / rate
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = sum(np.sin(k * phase) / k * (1 + np.sin(2 * np.pi * k * 0.3 * t)) for k in range(1, 20))
    loud = np.clip(np.sin(2 * np.pi * 2.5 * t), 0, 1) * (np.sin(2 * np.pi * 0.25 * t) > -0.3)
    return (0.1 * voice * loud + 0.003 * rng.standard_normal(t.size)).astype(np.float32)
