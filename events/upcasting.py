"""From old shapes of events to today's.

A recorded shape never changes: a field is added with a default, or the tag gets a new version and an upcaster from the
version before. Each upcaster does one step on the decoded JSON object, and today's event class only ever sees the
newest shape.
"""

from collections.abc import Callable, Iterable, Mapping

from refold.events.content import JsonObject
from refold.events.errors import ConfigError

Upcaster = Callable[[JsonObject], JsonObject]
"""Turns the JSON object of one version into that of the next; its `type` included."""


class Upcasters:
    """The known steps, checked for gaps and cycles when they are put together.

    Args:
        steps: from an old tag to the next tag and the function that makes the step.
        current: the tags that event classes have today.

    Raises:
        ConfigError: a step begins at a current tag, leads to a tag that nothing knows, or steps go in a circle.
    """

    def __init__(self, steps: Mapping[str, tuple[str, Upcaster]], current: Iterable[str]) -> None:
        known = frozenset(current)
        for start in steps:
            if start in known:
                raise ConfigError(f"the upcaster from {start!r} begins at a tag that an event class still has")
            seen = [start]
            while (tag := seen[-1]) not in known:
                if tag not in steps:
                    raise ConfigError(f"the upcasters {' -> '.join(seen)} end at {tag!r}, which no event class has")
                following = steps[tag][0]
                if following in seen:
                    raise ConfigError(f"the upcasters {' -> '.join([*seen, following])} go in a circle")
                seen.append(following)
        self._steps = dict(steps)

    def upcast(self, tag: str, data: JsonObject) -> JsonObject | None:
        """Return `data` in today's shape, or None if `tag` is unknown."""
        if tag not in self._steps:
            return None
        while tag in self._steps:
            tag, step = self._steps[tag]
            data = {**step(data), "type": tag}
        return data
