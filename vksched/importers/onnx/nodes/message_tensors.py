"""Iterate over the messages of a model by their descriptors, and find tensors in any field."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx
from google.protobuf.message import Message


def messages_in(message: Message, without: Collection[str] = ()) -> Iterator[Message]:
    """Yield the messages in the fields of a message, except fields named in `without`."""
    for field, value in message.ListFields():
        if field.message_type is None or field.name in without:
            continue
        if isinstance(value, Message):
            yield value
        else:
            yield from value


def tensors_in(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield every tensor in a message, at any depth."""
    waiting = [message]
    while waiting:
        found = waiting.pop()
        if isinstance(found, onnx.TensorProto):
            yield found
        else:
            waiting.extend(messages_in(found))


def is_external(tensor: onnx.TensorProto) -> bool:
    """Return True if a tensor refers to external data."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL
