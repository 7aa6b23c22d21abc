"""ServerLimits: the bounds of requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The bounds of requests.

    Parameters
    ----------
    body_bytes
        The maximum size of a request's body.
    all_bodies_bytes
        The maximum size of all bodies that are being read.
    header_bytes
        The maximum size of a request's headers.
    header_timeout_s, body_timeout_s
        The time in which the headers, and the body, of a request must arrive.
    send_timeout_s
        The time in which a client must take a part of a stream.
    ping_s
        The time between two comments of a stream that keep connections open.
    work_timeout_s
        The time limit of one template, tokenization or grammar, and of its time in the queue.
    grammar_timeout_s
        The time limit of compiling a grammar, which a child process tries first.
    connections
        The maximum number of open connections.
    choices
        The maximum of `n`, and of the number of prompts of a request.
    embedding_tokens
        The maximum number of tokens of all texts of a request for embeddings.
    pictures
        The maximum number of pictures of a request.
    picture_pixels
        The maximum number of pixels of a picture.
    picture_timeout_s
        The time limit of decoding a picture. A WEBP file, whose decoder cannot be interrupted, has
        at most 2**22 pixels for each second of it.
    all_pictures_bytes
        The maximum size in memory of the pictures of all requests; see `PictureAdmission`.
    """

    body_bytes: int = 8 << 20
    all_bodies_bytes: int = 64 << 20
    header_bytes: int = 32 << 10
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    send_timeout_s: float = 30.0
    ping_s: float = 15.0
    work_timeout_s: float = 10.0
    grammar_timeout_s: float = 3.0
    connections: int = 512
    choices: int = 16
    embedding_tokens: int = 300_000
    pictures: int = 16
    picture_pixels: int = 1 << 24
    picture_timeout_s: float = 2.0
    all_pictures_bytes: int = 512 << 20
