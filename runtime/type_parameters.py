"""The type parameters of agents and of what they give, so that a checker knows the type of `result.output`.

`Agent[Deps, Out]`: what its tools are given, and what its final answers are; left out, any dependencies and text.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Checkers know it without an install; Python itself knows defaults from 3.13 on.
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from contextlib import _GeneratorContextManager as PlainManager  # pyright: ignore[reportPrivateUsage]
    from typing import TypeAlias

    from typing_extensions import TypeVar

    Deps = TypeVar("Deps", default=Any)
    Out_co = TypeVar("Out_co", default=str, covariant=True)

    Entered: TypeAlias = (
        AbstractAsyncContextManager[Deps, bool | None]
        | PlainManager[Deps]
        | Callable[[], AbstractAsyncContextManager[Deps, bool | None] | AbstractContextManager[Deps, bool | None]]
    )
    """What is entered, as `refold.agents.opened_deps` does, and gives the dependencies then."""
else:
    from typing import TypeVar

    Deps = TypeVar("Deps")
    Out_co = TypeVar("Out_co", covariant=True)
