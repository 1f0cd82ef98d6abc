"""Text of strangers is shown, and never obeyed."""

import pytest

from csd_spec.text import plain, plain_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is: é ✓ 漢", "as it is: é ✓ 漢"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("\x9b31m", r"\x9b31m"),  # CSI in one character (ECMA-48, section 5.3)
        ("a\r\nb", r"a\r\nb"),
        ("\u202eterces", r"\u202eterces"),  # a right-to-left override
        ("\udc80", r"\udc80"),
        ("a\tb\x00", "a   b\\x00"),
    ],
)
def test_what_is_not_printable_is_an_escape(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_lines_stay_lines() -> None:
    assert plain_lines("a\x1b\nb\r\n") == "a\\x1b\nb\\r\n"
