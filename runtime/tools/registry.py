"""The tools of one runtime, by name.

It is what actors call the `ToolRunner`. Everything is listed in name order, so that the same tools always make the
same request to a model. Tools may be registered and removed while sessions run: a tool that is gone is not found by
the next call, and each input that is sent afterwards finds the tools that there are.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import cast, get_args

from refold.actors.calls.protocols import NO_RULES, ToolRules
from refold.actors.calls.questions import AnswerType
from refold.actors.calls.tool_context import ToolContext
from refold.actors.thread_pool import ThreadPool
from refold.events.core.content import JsonObject
from refold.events.core.errors import ConfigError, ToolError, quoted
from refold.events.kinds.indexing import TextColumn
from refold.events.model.configuration import Tier, ToolSpec
from refold.events.session.events import Verdict
from refold.tools.data_type import NOT_DESCRIBED, DataType, why_not_described
from refold.tools.tool import Tool, tool

AnyTool = Tool[..., object]

NAMES_LISTED_MAX = 20
"""A model that asked for a tool that does not exist is told at most so many names."""


class ToolRegistry:
    """A set of tools with different names; iterating gives them in name order."""

    def __init__(
        self, tools: Iterable[AnyTool | Callable[..., object]] = (), *, pool: ThreadPool | None = None
    ) -> None:
        """Register `tools`.

        Args:
            tools: tools, or functions that are made tools as by a bare `@tool`.
            pool: where synchronous tools run; its owner closes it. If None, the registry makes one when it needs it.

        Raises:
            ConfigError: two have one name, or one is no tool.
        """
        self._tools: dict[str, AnyTool] = {}
        self._names: tuple[str, ...] = ()
        self._pool = pool
        self.on_change: Callable[[AnyTool | None], object] | None = None
        """Is told that a tool is there from now on, or with None that one is gone; what it raises keeps a tool out."""
        for item in tools:
            self.register(item)

    def __contains__(self, item: object) -> bool:
        return self._tools.get(item.name) is item if isinstance(item, Tool) else item in self._tools

    def __iter__(self) -> Iterator[AnyTool]:
        return iter([item for _, item in sorted(self._tools.items())])

    def __len__(self) -> int:
        return len(self._tools)

    def __repr__(self) -> str:
        return f"<ToolRegistry {', '.join(self._names) or 'without tools'}>"

    def register(self, item: AnyTool | Callable[..., object]) -> AnyTool:
        """Add a tool, or a function as by a bare `@tool`, and return the tool.

        Raises:
            ConfigError: there is a tool of that name, or `item` cannot be one.
        """
        new = cast("AnyTool", item) if isinstance(item, Tool) else tool(item)
        old = self._tools.get(new.name)
        if old is not None:
            raise ConfigError(
                f"there are two tools named {new.name!r}, {old.origin} and {new.origin}; give one another name with "
                "@tool(name=…), or remove the first"
            )
        self._set({**self._tools, new.name: new})
        if self.on_change is not None:
            try:
                self.on_change(new)
            except ConfigError:
                self._set({name: item for name, item in self._tools.items() if name != new.name})
                raise
        return new

    def remove(self, name: str) -> AnyTool:
        """Take a tool out and return it; calls of it that run go on.

        Raises:
            ConfigError: there is no tool of that name.
        """
        if name not in self._tools:
            raise ConfigError(f"there is no tool {name!r} to remove{self._hint(name)}")
        removed = self._tools[name]
        self._set({other: item for other, item in self._tools.items() if other != name})
        if self.on_change is not None:
            self.on_change(None)
        return removed

    def _set(self, tools: dict[str, AnyTool]) -> None:
        """Have other tools from now on; who goes through them meanwhile sees those from before."""
        self._tools = tools
        self._names = tuple(sorted(tools))

    def get(self, name: str) -> AnyTool | None:
        """Return the tool of that name, or None."""
        return self._tools.get(name)

    def names(self) -> tuple[str, ...]:
        """Return the names of all tools, sorted."""
        return self._names

    def names_containing(self, text: str) -> tuple[str, ...]:
        """Return the names that contain `text` in upper or lower case, sorted."""
        return tuple(name for name in self._names if text.casefold() in name.casefold())

    @property
    def descriptions(self) -> TextColumn:
        """What models are told of the tools, in name order."""
        return TextColumn(item.spec.description for item in self)

    def by_tier(self, tier: Tier) -> tuple[AnyTool, ...]:
        """Return the tools of one tier, in name order.

        Raises:
            ConfigError: there is no such tier.
        """
        if tier not in get_args(Tier):
            raise ConfigError(f"there is no tier {quoted(tier)}; there are {', '.join(get_args(Tier))}")
        return tuple(item for item in self if item.spec.tier == tier)

    def spec(self, name: str) -> ToolSpec | None:
        """Return a tool's description, or None if there is no such tool."""
        found = self._tools.get(name)
        return found.spec if found is not None else None

    def rules(self, name: str) -> ToolRules:
        """Return how a tool's calls are carried out; by no rules if there is no such tool."""
        found = self._tools.get(name)
        return found.rules if found is not None else NO_RULES

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the descriptions of all tools, in name order."""
        return tuple(item.spec for item in self)

    def check(self, name: str, arguments: JsonObject) -> tuple[JsonObject, Verdict]:
        """Return the arguments as they will be passed, repaired where their meaning is certain, and the verdict."""
        found = self._tools.get(name)
        if found is None:
            return arguments, Verdict(verdict="not_found", reason=f"There is no tool {name!r}{self._hint(name)}")
        return found.check(arguments)

    def described(self, annotation: object) -> AnswerType:
        """Return the type of what a tool asks for; raise ConfigError where it has no JSON Schema."""
        try:
            return DataType[object](annotation)
        except NOT_DESCRIBED as error:
            why = why_not_described(error)
            raise ConfigError(f"{quoted(annotation, 100)} is no type that can be asked for: {why}") from None

    async def run(self, name: str, arguments: JsonObject, context: ToolContext[object]) -> object:
        """Run a tool's body and return what it returned.

        Raises:
            ToolError: there is no such tool, or the arguments do not fit.
            Exception: what the body raised.
        """
        found = self._tools.get(name)
        if found is None:
            raise ToolError(f"There is no tool {name!r}{self._hint(name)}")
        if self._pool is None:
            self._pool = ThreadPool(name="refold-tool")
        return await found.run(arguments, context, self._pool)

    def _hint(self, name: str) -> str:
        """Return the end of a sentence that says which names there are, the likely ones only if there are such."""
        if not self._names:
            return "; there are no tools."
        folded = {known.casefold(): known for known in self._names}
        close = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)
        if close:
            return f"; did you mean {' or '.join(folded[match] for match in close)}?"
        more = len(self._names) - NAMES_LISTED_MAX
        listed = ", ".join(self._names[:NAMES_LISTED_MAX])
        return f"; there are {listed}{f' and {more} more' if more > 0 else ''}."
