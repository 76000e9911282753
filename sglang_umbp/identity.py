"""The one place where identities of key spaces are built."""

from __future__ import annotations


def encode_identity(*parts: tuple[str, bytes]) -> bytes:
    """Tagged, length-delimited parts as one byte string: ("a", "bc") and ("ab", "c") differ."""
    return b"".join(
        b"%d:%s%d:%s" % (len(tag), tag, len(value), value)
        for tag, value in ((name.encode(), value) for name, value in parts)
    )


def component_identity(namespace: bytes, component: str) -> bytes:
    """The identity of one component of a namespace."""
    return encode_identity(("namespace", namespace), ("component", component.encode()))


RAW_KEYS_IDENTITY = encode_identity(("raw", b""))
"""Objects put by key alone, without a namespace."""
