"""A log, read afterwards: replayed with today's code, followed as it grows, and the exact requests that it holds.

Read `refold.replay.log_replay` first: level `core` is in `core_replay`; level `decide` in `agent_replay`, which asks
`current_agent`; the levels above it differ in `answers`, and `findings` has the report. `follow_log` and
`recorded_request` are views of `refold.inspection`.
"""

from typing import TYPE_CHECKING

from refold._lazy import lazy

if TYPE_CHECKING:
    from refold.inspection.request_view import RecordedRequest as RecordedRequest
    from refold.inspection.request_view import recorded_request as recorded_request
    from refold.inspection.tail import follow_log as follow_log
    from refold.replay.answers.asked import ModelRequests as ModelRequests
    from refold.replay.answers.asked import model_requests as model_requests
    from refold.replay.comparing import MeantDifferences as MeantDifferences
    from refold.replay.comparing import write_expected as write_expected
    from refold.replay.findings import Level as Level
    from refold.replay.findings import NotReplayed as NotReplayed
    from refold.replay.findings import ReplayReport as ReplayReport
    from refold.replay.log_replay import replay as replay
    from refold.replay.log_replay import state_at as state_at
    from refold.replay.manifest import BundleManifest as BundleManifest
    from refold.replay.manifest import read_manifest as read_manifest
    from refold.replay.open_runs import InFlightReport as InFlightReport
    from refold.replay.open_runs import in_flight as in_flight
    from refold.replay.trial.report import TrialReport as TrialReport
    from refold.replay.trial.report import TriedSession as TriedSession
    from refold.replay.trial.trial import Trial as Trial
    from refold.replay.trial.trial import try_agent as try_agent
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.inspection.request_view": "recorded_request RecordedRequest",
            "refold.inspection.tail": "follow_log",
            "refold.replay.answers.asked": "model_requests ModelRequests",
            "refold.replay.open_runs": "in_flight InFlightReport",
            "refold.replay.findings": "Level NotReplayed ReplayReport",
            "refold.replay.log_replay": "replay state_at",
            "refold.replay.manifest": "BundleManifest read_manifest",
            "refold.replay.comparing": "MeantDifferences write_expected",
            "refold.replay.trial.report": "TrialReport TriedSession",
            "refold.replay.trial.trial": "Trial try_agent",
        },
    )
