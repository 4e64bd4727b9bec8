"""What the numbers of acts, faults and scenarios may be."""

import math
from collections.abc import Callable

import pytest

from refold import ConfigError
from refold.scenarios import Abandon, Say, Scenario, Watch, drawn_scenario, faults

ACTS = (Say(session="a"),)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Say(session="a", at_s=math.nan), r"Say\.at_s is from 0 to 10,000,000 seconds, and is nan"),
        (lambda: Say(session="a", at_s=1e308), r"Say\.at_s"),
        (lambda: Say(session="a", times=0), r"Say\.times is from 1"),
        (lambda: Abandon(session="a", after_s=-1), r"Abandon\.after_s"),
        (lambda: Watch(session="a", capacity=0), r"Watch\.capacity"),
        (lambda: faults.ToolIsSlow(nth=1, seconds=math.inf), r"ToolIsSlow\.seconds"),
        (lambda: faults.ToolIsSlow(nth=0), r"ToolIsSlow\.nth counts from 1"),
        (lambda: faults.Crash(at_s=-1), r"Crash\.at_s"),
        (lambda: faults.AppendFails(nth=1, appends=0), r"AppendFails\.appends"),
        (lambda: faults.HostFails(nth=1, status=200), r"HostFails\.status"),
        (lambda: faults.ClockJumps(at_s=1, seconds=-1e12), r"ClockJumps\.seconds is from -10,000,000"),
        (lambda: faults.ProviderBrownOut(at_s=1, for_s=1, share=1.5), r"ProviderBrownOut\.share"),
        (lambda: faults.ProviderBrownOut(at_s=1, for_s=1, place=0), r"ProviderBrownOut\.place"),
        (lambda: Scenario(acts=ACTS, calm_s=-1), r"Scenario\.calm_s"),
        (lambda: Scenario(acts=ACTS, deviations={0: -1}), r"deviations count from 0"),
        (lambda: Scenario(acts=(Say(session="a", at_s=60_000),)), r"Say is over at 60,000 s, and the scenario at"),
        (lambda: Scenario(acts=ACTS, store="disk"), r"Scenario\.store is one of"),  # type: ignore[arg-type]
        (lambda: drawn_scenario(1, acts=0), r"acts is a whole number from 1"),
        (lambda: drawn_scenario(1.5), r"a seed is a whole number"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_played_cannot_be_made(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
