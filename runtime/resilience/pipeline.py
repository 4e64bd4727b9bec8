"""Named stages through which a text goes in order.

    clean = Pipeline([("strip", str.strip), ("translate", translate)])
    text = await clean.run("  olá ")

A stage takes the text and returns the next one; it may be async. The one that fails is named in the error.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from refold.events.core.cleaning import error_words
from refold.events.core.errors import ConfigError, PipelineError, quoted
from refold.events.core.ids import checked_identifier

Stage: TypeAlias = Callable[[str], str | Awaitable[str]]
"""Gives the text for the next stage; with `Pipeline.run_sync` not as an awaitable."""


class Pipeline:
    """Stages with different names, in the order in which they are given; without any, a text does not change.

    Raises:
        ConfigError: two stages have one name, a name cannot be one, or a stage is no function.
    """

    def __init__(self, stages: Iterable[tuple[str, Stage]]) -> None:
        self._stages: dict[str, Stage] = {}
        for name, stage in stages:
            if checked_identifier(name, "stage name") in self._stages:
                raise ConfigError(f"two stages of the pipeline are named {name!r}; give each a name of its own")
            if not callable(stage):
                raise ConfigError(f"the stage {name!r} of the pipeline is a function, not {quoted(stage)}")
            self._stages[name] = stage

    def __repr__(self) -> str:
        return f"<Pipeline {' → '.join(self._stages) or 'without stages'}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its stages, in order."""
        return tuple(self._stages)

    async def run(self, text: str) -> str:
        """Return `text` after the last stage.

        Raises:
            PipelineError: a stage failed, or gave something else than text; names the stage.
        """
        for name, stage in self._stages.items():
            try:
                made: object = stage(text)
                if inspect.isawaitable(made):
                    made = await made
            except Exception as error:
                raise _failed(name, error) from error
            text = _checked(name, made)
        return text

    def run_sync(self, text: str) -> str:
        """Return `text` after the last stage, where no stage is async.

        Raises:
            PipelineError: a stage failed, is async, or gave something else than text; names the stage.
        """
        for name, stage in self._stages.items():
            try:
                made: object = stage(text)
            except Exception as error:
                raise _failed(name, error) from error
            if inspect.iscoroutine(made):
                made.close()
            if inspect.isawaitable(made):
                raise PipelineError(name, "is async; use `await pipeline.run(text)`")
            text = _checked(name, made)
        return text


def _failed(name: str, error: Exception) -> PipelineError:
    return PipelineError(name, f"failed: {error_words(error)}")


def _checked(name: str, made: object) -> str:
    if not isinstance(made, str):
        raise PipelineError(name, f"must give text, and gave {type(made).__name__}")
    return made
