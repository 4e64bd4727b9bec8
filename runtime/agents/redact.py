"""What an agent says must not be in a log, and what its process knows of that by itself: the keys of providers."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from refold.events.core.errors import ConfigError
from refold.events.secrets.redaction import FieldPath, Redaction
from refold.providers.http.secrets import Secret, redaction_of, redaction_of_environment
from refold.stores.clean_log import in_use

Redact: TypeAlias = Sequence[str | Secret | re.Pattern[str] | FieldPath]
"""Exact values, compiled patterns of text, and places in JSON values."""


class Redacting(Protocol):
    """What of an agent counts here."""

    @property
    def provider(self) -> object: ...

    @property
    def redact(self) -> Redact: ...


def redaction_of_rules(rules: Redact) -> Redaction:
    """Return what looks for these, each of which is checked."""
    if isinstance(rules, str | Secret | re.Pattern | FieldPath):
        raise ConfigError("redact must be a list of values, patterns and field paths, not one of them")
    others = [rule for rule in rules if not isinstance(rule, str | Secret | re.Pattern | FieldPath)]
    if others:
        raise ConfigError(
            f"redact holds a {type(others[0]).__name__}; it takes texts, Secrets, compiled patterns and FieldPaths"
        )
    values = [rule.reveal() if isinstance(rule, Secret) else rule for rule in rules if isinstance(rule, str | Secret)]
    return Redaction(
        values,
        [rule for rule in rules if isinstance(rule, re.Pattern)],
        [rule for rule in rules if isinstance(rule, FieldPath)],
    )


def redaction_of_agents(agents: Iterable[Redacting], environment: Mapping[str, str] = os.environ) -> Redaction:
    """Return what takes out all that agents say must not be recorded, the keys of their providers, and those around."""
    agents = list(agents)
    return in_use(
        Redaction(
            others=[
                redaction_of_environment(environment),
                redaction_of(*(agent.provider for agent in agents)),
                *(redaction_of_rules(agent.redact) for agent in agents),
            ]
        )
    )
