"""A bug in one file: a session with what it depends on, redacted, and what it was recorded with.

Read `bundle` first. `refold.keeping.belongings` says which streams a session needs, and `redacted_log` takes secrets
out of a log that is there already, so that a replay of it comes to the same verdict.
"""

from typing import TYPE_CHECKING

from refold._lazy import lazy

if TYPE_CHECKING:
    from refold.bundles.bundle import bundle_session as bundle_session
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {"refold.bundles.bundle": "bundle_session"},
    )
