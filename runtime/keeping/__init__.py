"""What a log keeps and for how long: deletion, retention, archives, and repair of a damaged log.

Read `deletion` first.
"""

from typing import TYPE_CHECKING

from refold._lazy import lazy

if TYPE_CHECKING:
    from refold.keeping.deletion import Deletion as Deletion
    from refold.keeping.deletion import NamedIn as NamedIn
    from refold.keeping.deletion import delete_session as delete_session
    from refold.keeping.repair import repair_log as repair_log
    from refold.keeping.retention import Retention as Retention
    from refold.keeping.retention import retain as retain
    from refold.stores.keeping.compacting import Compaction as Compaction
    from refold.stores.keeping.compacting import compact as compact
    from refold.stores.keeping.repair import CutStream as CutStream
    from refold.stores.keeping.repair import RepairReport as RepairReport
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.keeping.deletion": "Deletion NamedIn delete_session",
            "refold.keeping.retention": "Retention retain",
            "refold.stores.keeping.compacting": "Compaction compact",
            "refold.keeping.repair": "repair_log",
            "refold.stores.keeping.repair": "CutStream RepairReport",
        },
    )
