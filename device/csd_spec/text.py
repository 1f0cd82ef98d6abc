"""Text of programs and drives on its way to a terminal, which shows it and must not obey it."""


def plain(text: str) -> str:
    """`text` with every control character, line feeds too, as its escape in Python: `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text.expandtabs(4)
    )


def plain_lines(text: str) -> str:
    """The same, line feeds left as they are."""
    return "\n".join(map(plain, text.split("\n")))
