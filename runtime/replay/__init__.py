"""Replay: a log, done again with today's code, at level `fold`, `core` or `decide`.

Read `refold.replay.log_replay` first.
"""

from refold.replay.log_replay import Level, NotReplayed, ReplayReport, replay, replay_sync, state_at

__all__ = ["Level", "NotReplayed", "ReplayReport", "replay", "replay_sync", "state_at"]
