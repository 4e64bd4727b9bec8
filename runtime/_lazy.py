"""Public names of a package that load on first use, so that importing the package is cheap.

    if TYPE_CHECKING:
        from refold.events.core.content import Message as Message
    else:
        __getattr__, __dir__, __all__ = lazy(__name__, {"refold.events.core.content": "Message"})

Type checkers read the imports, Python reads the table; `tests/test_public_names.py` holds the two against each other.
The module imports nothing of Refold, so the packages of all layers may use it.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from sys import modules


def lazy(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, the `__dir__` and the `__all__` of a package.

    Args:
        package: its name.
        names: the public names that each module gives it, with a space between.
    """
    homes = {name: module for module, listed in names.items() for name in listed.split()}
    public = sorted(homes)

    def get(name: str) -> object:
        """Import a public name when it is first used, and keep it."""
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(homes[name]), name)
        setattr(modules[package], name, value)
        return value

    return get, lambda: public, public
