"""magika: tells the type of a file from its bytes."""

from magika import Magika
from measured import report

FILES = (
    b"#!/usr/bin/env python\nimport os\n\ndef main():\n    print(os.getcwd())\n" * 9,
    b"<!DOCTYPE html><html><head><title>t</title></head><body><p>hello</p></body></html>" * 9,
    b'{"name": "value", "list": [1, 2, 3], "more": {"a": null}}\n' * 9,
    b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4,
    b"The quick brown fox jumps over the lazy dog, and nobody knows why it does so. " * 9,
    b'#include <stdio.h>\nint main(void) { printf("hello\\n"); return 0; }\n' * 9,
)
magika = Magika()


def work() -> list[object]:
    found = [magika.identify_bytes(data) for data in FILES]
    return [[str(f.output.label), float(f.score)] for f in found]


report(work)
