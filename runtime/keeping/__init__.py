"""What a log keeps and for how long: deleting sessions, keeping some of them, archives, and making the file smaller.

Read `deletion` first.
"""

from typing import TYPE_CHECKING

from refold._lazy import lazy

if TYPE_CHECKING:
    from refold.keeping.deletion import Deletion as Deletion
    from refold.keeping.deletion import NamedIn as NamedIn
    from refold.keeping.deletion import delete_session as delete_session
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {"refold.keeping.deletion": "Deletion NamedIn delete_session"},
    )
