"""Picture parts: takes the pictures out of the messages of a conversation.

    [{"type": "image_url", "image_url": {"url": ...}}, {"type": "text", "text": "What is it?"}]
        --take--> "<mark>0<mark>What is it?", [the picture]
        --chat template--> "<|user|><mark>0<mark>What is it?<|end|>"
        --split--> "<|user|>", 0, "What is it?<|end|>"

A mark is a character that occurs in no text of the conversation and not in the template. So all
templates that write texts write the places of pictures, too.

Examples: tests/generation/conversation/test_picture_parts.py.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shortened

from ...common.errors import MessageError
from ..pictures.prompt_pictures import OpenedPicture
from .control_shield import unused_mark
from .messages import part_text

KINDS = {"image_url": "image_url", "input_image": "image_url", "image": "image"}
"""The types of content parts with a picture, and the key of the picture."""
_DATA_URL = re.compile(r"data:[\w.+/-]*(;[\w.=+-]*)*;base64,", re.ASCII | re.IGNORECASE)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class PictureRules:
    """The pictures that a conversation may have.

    Parameters
    ----------
    allows_files
        A text that is no data: URL is the path of a file. False for messages of other people.
    max_pictures
        The maximum number of pictures; None for any.
    max_pixels
        The maximum number of pixels of a picture; None for that of `VisionModel.pixels`.
    max_seconds
        The maximum time to decode a picture; None for any.
    """

    allows_files: bool = True
    max_pictures: int | None = None
    max_pixels: int | None = None
    max_seconds: float | None = None


@dataclass(frozen=True)
class PicturePart:
    """A picture of a message: a path, the bytes of a file, an array, a picture of Pillow, or one
    that `open_pictures` opened. field: its place, for errors.
    """

    picture: object
    field: str


def has_pictures(messages: Sequence[Mapping[str, object]]) -> bool:
    """Return True if a message has a part with a picture."""
    return any(_is_picture(part) for each in messages for part in _parts_of(each))


def source_size(messages: Sequence[Mapping[str, object]]) -> int:
    """Return the number of characters of the URLs of pictures in messages."""
    parts = (part for each in messages for part in _parts_of(each) if _is_picture(part))
    sources = (_source_and_field(part, "")[0] for part in parts)
    return sum(len(each) for each in sources if isinstance(each, str))


def open_pictures(
    messages: Sequence[Mapping[str, object]],
    rules: PictureRules,
    open_part: Callable[[PicturePart], OpenedPicture],
) -> list[Mapping[str, object]]:
    """Return messages with opened pictures in place of their sources.

    Raises
    ------
    MessageError
        A picture has no valid source, or there are too many; then none is opened.
    """
    out = list(messages)
    for (at, number), part in _picture_parts(messages, rules).items():
        content = list(_parts_of(out[at]))
        content[number] = _with_picture(content[number], open_part(part))
        out[at] = {**out[at], "content": content}
    return out


def take_pictures(
    messages: Sequence[Mapping[str, object]], rules: PictureRules, others: object, template: str
) -> tuple[list[dict[str, object]], list[PicturePart], str]:
    """Return messages with marks in place of pictures, the pictures, and the mark.

    others, template: all other texts of the conversation, in which the mark does not occur.

    Raises
    ------
    MessageError
        A picture has no valid source, or there are too many.
    """
    pictures = _picture_parts(messages, rules)
    numbers = {place: number for number, place in enumerate(pictures)}
    parts_of: dict[int, list[str | int]] = {
        at: [
            numbers[at, number]
            if (at, number) in numbers
            else part_text(part, f"messages[{at}].content[{number}]")
            for number, part in enumerate(_parts_of(messages[at]))
        ]
        for at in dict.fromkeys(at for at, _ in pictures)
    }
    texts = [part for parts in parts_of.values() for part in parts if isinstance(part, str)]
    rest = [
        {key: value for key, value in each.items() if key != "content"} if at in parts_of else each
        for at, each in enumerate(messages)
    ]
    mark = unused_mark([texts, rest, others], template)
    out = [
        {**each, "content": _joined(parts_of[at], mark)} if at in parts_of else dict(each)
        for at, each in enumerate(messages)
    ]
    return out, list(pictures.values()), mark


def split_at_pictures(text: str, mark: str) -> list[str | int]:
    """Return a rendered conversation as texts and numbers of pictures; the first and the last one
    are texts, and so is one of two neighbours.
    """
    pieces = re.split(f"{re.escape(mark)}([0-9]+){re.escape(mark)}", text)
    return [int(each) if at % 2 else each for at, each in enumerate(pieces)]


def _parts_of(message: Mapping[str, object]) -> Sequence[object]:
    content = message.get("content")
    is_list = isinstance(content, Sequence) and not isinstance(content, (str, bytes, bytearray))
    return content if is_list else ()  # type: ignore[return-value]


def _is_picture(part: object) -> bool:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind in KINDS


def _joined(parts: Sequence[str | int], mark: str) -> str:
    """Return parts as one text, with a newline between two texts."""
    out = ""
    for at, part in enumerate(parts):
        if isinstance(part, int):
            out += f"{mark}{part}{mark}"
        else:
            out += "\n" * (at > 0 and isinstance(parts[at - 1], str)) + part
    return out


def _picture_parts(
    messages: Sequence[Mapping[str, object]], rules: PictureRules
) -> dict[tuple[int, int], PicturePart]:
    """Return the pictures of messages by the numbers of the message and of the part."""
    out: dict[tuple[int, int], PicturePart] = {}
    for at, message in enumerate(messages):
        for number, part in enumerate(_parts_of(message)):
            if not _is_picture(part):
                continue
            field = f"messages[{at}].content[{number}]"
            if rules.max_pictures is not None and len(out) >= rules.max_pictures:
                raise MessageError(
                    field, f"expected at most {rules.max_pictures} pictures, got more"
                )
            out[at, number] = _picture_part(part, field, rules.allows_files)
    return out


def _source_and_field(part: object, field: str) -> tuple[object, str]:
    """Return the picture of a part, and its place."""
    assert isinstance(part, Mapping)
    key = KINDS[part["type"]]
    found, field = part.get(key), f"{field}.{key}"
    return (found.get("url"), f"{field}.url") if isinstance(found, Mapping) else (found, field)


def _with_picture(part: object, picture: OpenedPicture) -> dict[str, object]:
    """Return a part with another picture at the same place."""
    assert isinstance(part, Mapping)
    key = KINDS[part["type"]]
    is_nested = isinstance(part[key], Mapping)
    return {**part, key: {**part[key], "url": picture} if is_nested else picture}


def _picture_part(part: object, field: str, allows_files: bool) -> PicturePart:
    found, field = _source_and_field(part, field)
    if isinstance(found, OpenedPicture):
        return PicturePart(found, field)
    if isinstance(found, str):
        return PicturePart(_source_of(found, field, allows_files), field)
    if found is None or not allows_files:
        raise MessageError(field, f"expected a data: URL, got {shortened(found)}")
    return PicturePart(found, field)


def _source_of(text: str, field: str, allows_files: bool) -> str | bytes:
    """Return the bytes of a data: URL, or a path."""
    wanted = "a path or a data: URL" if allows_files else "a data: URL"
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[1].lower() == "data":
        return _data_of(text, field)
    if scheme is not None and text.startswith("//", scheme.end()):
        raise MessageError(
            field,
            f"expected {wanted}, as no addresses are fetched, got {shortened(text)}; try to send "
            "the file itself as data:image/png;base64,...",
        )
    if not allows_files:
        raise MessageError(
            field, f"expected a data: URL such as data:image/png;base64,..., got {shortened(text)}"
        )
    return text


def _data_of(url: str, field: str) -> bytes:
    """Return the bytes of a data: URL."""
    head = _DATA_URL.match(url)
    if head is None:
        raise MessageError(
            field, f"expected a data: URL such as data:image/png;base64,..., got {shortened(url)}"
        )
    try:
        return base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise MessageError(field, f"expected valid base64 in a data: URL, got {error}") from error
