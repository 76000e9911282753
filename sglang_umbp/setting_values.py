"""What is known of a setting, and of a value that somebody gave it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .errors import SettingsError
from .setting_kinds import Kind


@dataclass(frozen=True)
class Setting:
    """What is known of a setting beside its name and default."""

    kind: Kind
    meaning: str
    variables: tuple[str, ...] = ()
    """Environment variables; the first is the one to use, the others are also read."""
    aliases: tuple[str, ...] = ()
    """Other names by which a dict or an argument may give it."""


class Source(NamedTuple):
    """Where a value came from."""

    kind: str
    """'default', 'environment' or 'argument'."""
    name: str
    """The variable or argument as it was given; empty for a default."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


DEFAULT = Source("default", "")


def setting(
    default: object, kind: Kind, meaning: str, *variables: str, aliases: tuple[str, ...] = ()
) -> Any:  # Any: a field of whatever type the default has
    """A field of PoolSettings."""
    return field(default=default, metadata={"setting": Setting(kind, meaning, variables, aliases)})


class Given(NamedTuple):
    """A value as somebody wrote it."""

    value: object
    source: Source

    def parsed(self, about: Setting) -> object:
        """The value as the setting's kind has it. Raises SettingsError naming the source."""
        try:
            return about.kind.parse(self.value)
        except ValueError:
            raise SettingsError(f"{self.source.name}={self.value!r}; allowed: {about.kind.allowed}") from None
