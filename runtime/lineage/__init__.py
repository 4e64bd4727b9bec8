"""Where a session comes from and how it went: forks, where two sessions part, causes of an event, what was around it.

Read `fork` first; `refold.stores.forked` says how a fork lies in the log.
"""

from typing import TYPE_CHECKING

from refold._lazy import lazy

if TYPE_CHECKING:
    from refold.lineage.causes import CausingEvent as CausingEvent
    from refold.lineage.causes import timeline as timeline
    from refold.lineage.causes import why as why
    from refold.lineage.recorded import RecordedCall as RecordedCall
    from refold.lineage.recorded import RecordedTools as RecordedTools
    from refold.lineage.session_diff import DiffPart as DiffPart
    from refold.lineage.session_diff import SessionDiff as SessionDiff
    from refold.lineage.session_diff import diff as diff
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.lineage.causes": "CausingEvent timeline why",
            "refold.lineage.session_diff": "DiffPart SessionDiff diff",
            "refold.lineage.recorded": "RecordedCall RecordedTools",
        },
    )
