"""Replay: a log, done again with today's code, at level `fold`, `core` or `decide`.

Read `refold.replay.log_replay` first.
"""

from typing import TYPE_CHECKING

from refold._lazy import lazy

if TYPE_CHECKING:
    from refold.replay.log_replay import Level as Level
    from refold.replay.log_replay import NotReplayed as NotReplayed
    from refold.replay.log_replay import ReplayReport as ReplayReport
    from refold.replay.log_replay import replay as replay
    from refold.replay.log_replay import replay_sync as replay_sync
    from refold.replay.log_replay import state_at as state_at
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.replay.log_replay": "Level NotReplayed replay replay_sync ReplayReport state_at",
        },
    )
