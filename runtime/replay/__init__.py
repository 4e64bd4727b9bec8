"""A log, read afterwards: replayed with today's code, followed as it grows, and the exact requests that it holds.

Read `refold.replay.log_replay` first: level `core` is in `core_replay`; level `decide` in `agent_replay`, which asks
`current_agent`. `follow_log` and `recorded_request` are views of `refold.inspection`.
"""

from typing import TYPE_CHECKING

from refold._lazy import lazy

if TYPE_CHECKING:
    from refold.inspection.request_view import RecordedRequest as RecordedRequest
    from refold.inspection.request_view import recorded_request as recorded_request
    from refold.inspection.tail import follow_log as follow_log
    from refold.replay.log_replay import Level as Level
    from refold.replay.log_replay import NotReplayed as NotReplayed
    from refold.replay.log_replay import ReplayReport as ReplayReport
    from refold.replay.log_replay import replay as replay
    from refold.replay.log_replay import replay_sync as replay_sync
    from refold.replay.log_replay import state_at as state_at
    from refold.replay.manifest import BundleManifest as BundleManifest
    from refold.replay.manifest import read_manifest as read_manifest
    from refold.replay.meant import MeantDifferences as MeantDifferences
    from refold.replay.meant import write_expected as write_expected
    from refold.replay.open_runs import InFlightReport as InFlightReport
    from refold.replay.open_runs import in_flight as in_flight
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.inspection.request_view": "recorded_request RecordedRequest",
            "refold.inspection.tail": "follow_log",
            "refold.replay.open_runs": "in_flight InFlightReport",
            "refold.replay.log_replay": "Level NotReplayed replay replay_sync ReplayReport state_at",
            "refold.replay.manifest": "BundleManifest read_manifest",
            "refold.replay.meant": "MeantDifferences write_expected",
        },
    )
