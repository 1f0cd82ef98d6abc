"""Escaping of untrusted text for terminals: control characters are shown, not executed."""


def plain(text: str) -> str:
    """`text` with every control character, line feeds too, as its escape in Python: `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text.expandtabs(4)
    )


def plain_lines(text: str) -> str:
    """`text` as `plain` returns it, but with its line feeds."""
    return "\n".join(map(plain, text.split("\n")))
