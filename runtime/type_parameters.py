"""The type parameters of agents and of what they give, so that a checker knows the type of `result.output`.

`Agent[Deps, Out]`: what its tools are given, and what its final answers are; left out, any dependencies and text.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Checkers know it without an install; Python itself knows defaults from 3.13 on.
    from typing_extensions import TypeVar

    Deps = TypeVar("Deps", default=Any)
    Out_co = TypeVar("Out_co", default=str, covariant=True)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps")
    Out_co = TypeVar("Out_co", covariant=True)
