"""Text from another process, for terminals and logs."""

from __future__ import annotations


def printable(text: str) -> str:
    """The same with a dot for each character that is no visible one: control codes, line ends, changes of direction."""
    return "".join(character if character.isprintable() else "." for character in text)
