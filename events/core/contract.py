"""The names of `refold.events.core.pure_core` under which actors still import them."""

from refold.events.core.pure_core import Effect as Effect
from refold.events.core.pure_core import Plan as Plan
from refold.events.core.pure_core import PureCore as Core
from refold.events.core.pure_core import Recorded as Recorded
from refold.events.core.pure_core import Versioned as Versioned
from refold.events.core.pure_core import Wait as Wait
from refold.events.core.pure_core import WaitUntil as WaitUntil
from refold.events.core.pure_core import evolve_all as evolve_all
from refold.events.core.pure_core import plan as plan
from refold.events.core.pure_core import replan as replan

__all__ = ["Core", "Effect", "Plan", "Recorded", "Versioned", "Wait", "WaitUntil", "evolve_all", "plan", "replan"]
