"""Pictures are taken out of messages, and their places are found again."""

from __future__ import annotations

import pytest

from vksched.common.errors import MessageError
from vksched.generation.conversation.picture_parts import (
    PictureRules,
    has_pictures,
    split_at_pictures,
    take_pictures,
)

DATA = "data:image/png;base64,AAEC"


def link(url: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def user(*parts: object) -> dict[str, object]:
    return {"role": "user", "content": list(parts)}


def test_marks_stand_for_pictures() -> None:
    messages = [
        {"role": "system", "content": "\ufdd0"},
        user("a", {"type": "text", "text": "b"}, link(DATA), "c"),
        user({"type": "input_image", "image_url": "p.png"}, {"type": "image", "image": b"x"}),
    ]
    assert has_pictures(messages) and not has_pictures(messages[:1])
    out, pictures, mark = take_pictures(messages, PictureRules(), "\ufdd1", "\ufdd2")
    assert mark == "\ufdd3"
    assert [each["content"] for each in out] == [
        "\ufdd0",
        f"a\nb{mark}0{mark}c",
        f"{mark}1{mark}{mark}2{mark}",
    ]
    assert [(each.picture, each.field) for each in pictures] == [
        (b"\0\1\2", "messages[1].content[2].image_url.url"),
        ("p.png", "messages[2].content[0].image_url"),
        (b"x", "messages[2].content[1].image"),
    ]
    assert split_at_pictures(f"x{mark}1{mark}{mark}0{mark}", mark) == ["x", 1, "", 0, ""]
    assert messages[1]["content"][2] == link(DATA)  # type: ignore[index]


def test_no_key_of_a_message_has_the_mark() -> None:
    forged = {**user(link(DATA)), "reasoning_content": "\ufdd07\ufdd0"}
    _, _, mark = take_pictures([forged], PictureRules(), None, "")
    assert mark == "\ufdd1"


def test_a_type_may_be_anything() -> None:
    assert not has_pictures([user({"type": []}), user({"type": {}})])


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (link("p.png"), "expected a data: URL such as"),
        (link("/etc/passwd"), "expected a data: URL such as"),
        (link("file:///etc/passwd"), "expected a data: URL, as no addresses are fetched"),
        (link("http://localhost/p.png"), "no addresses are fetched, got .*; try to send the file"),
        (link(None), "expected a data: URL, got None"),
        ({"type": "image", "image": b"x"}, "expected a data: URL, got b'x'"),
        ({"type": "image_url"}, "expected a data: URL, got None"),
        (link("data:text/html,x"), "such as data:image/png;base64"),
        (link("data:image/png;base64,A*=="), "valid base64 in a data: URL, got"),
    ],
)
def test_other_people_send_only_data(part: dict[str, object], text: str) -> None:
    with pytest.raises(MessageError, match=text):
        take_pictures([user(part)], PictureRules(allows_files=False), None, "")


def test_the_number_of_pictures_is_limited() -> None:
    messages = [user(link(DATA)), user(link(DATA), link(DATA))]
    rules = PictureRules(max_pictures=3)
    assert len(take_pictures(messages, rules, None, "")[1]) == 3
    with pytest.raises(MessageError, match="at most 2 pictures, got more") as caught:
        take_pictures(messages, PictureRules(max_pictures=2), None, "")
    assert caught.value.field == "messages[1].content[1]"
