"""How what is remembered fades, and what is recalled first.

Age, here and below, is the time since the episode was added, in hours; never less than 0.

    effective importance = importance * 0.5^(age / half-life)                                     [exponential decay]

    score = effective importance                                                                        [importance]
    score = effective importance + recency weight * 0.995^idle + frequency weight * n / (n + 1)             [hybrid]

where `idle` is the time in hours since the episode was last recalled, or added if it never was, and `n` how often it
was recalled. The weighted sum, and 0.995 for an hour, are those of Park et al., "Generative Agents: Interactive
Simulacra of Human Behavior" (UIST 2023), section 4.1, without its relevance, which decides before the score. The share
`n / (n + 1)` is 0, 1/2, 2/3, … and stays below 1, so that no number of recalls outweighs all the rest.
"""

import msgspec

from refold.events.core.cleaning import is_finite
from refold.events.core.errors import ConfigError, quoted

HOUR_US = 3_600_000_000
"""An hour in the unit of event times."""

RECENCY_PER_HOUR = 0.995
"""What is left of an episode's recency after an hour."""


class DecayPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How the importance of an episode falls as it ages; made by `exponential` or `none`.

    Raises:
        ConfigError: the half-life is no number above 0.
    """

    half_life_hours: float | None = None
    """Hours after which half of the importance is left; None = it never falls."""

    def __post_init__(self) -> None:
        hours = self.half_life_hours
        if hours is not None and not (is_finite(hours) and hours > 0):
            raise ConfigError(f"half_life_hours must be a number above 0, not {quoted(hours)}")

    @staticmethod
    def exponential(half_life_hours: float = 24.0) -> "DecayPolicy":
        """Return the policy by which half of an importance is left after each `half_life_hours`."""
        return DecayPolicy(half_life_hours=half_life_hours)

    @staticmethod
    def none() -> "DecayPolicy":
        """Return the policy by which importance never falls."""
        return DecayPolicy()

    def effective(self, importance: float, age_us: int) -> float:
        """Return what is left of `importance` after `age_us` microseconds: importance * 0.5^(age / half-life)."""
        if self.half_life_hours is None:
            return importance
        return float(importance * 0.5 ** (max(age_us, 0) / HOUR_US / self.half_life_hours))


class RecallPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the matching episodes come first; made by `importance` or `hybrid`.

    Raises:
        ConfigError: a weight is negative, or no number.
    """

    recency_weight: float = 0.0
    frequency_weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("recency_weight", "frequency_weight"):
            weight = getattr(self, name)
            if not (is_finite(weight) and weight >= 0):
                raise ConfigError(f"{name} must be a number of at least 0, not {quoted(weight)}")

    @staticmethod
    def importance() -> "RecallPolicy":
        """Return the policy by which the effective importance decides."""
        return RecallPolicy()

    @staticmethod
    def hybrid(recency_weight: float = 1.0, frequency_weight: float = 1.0) -> "RecallPolicy":
        """Return the policy by which recent and frequent recalls count as well, by their weights, >= 0."""
        return RecallPolicy(recency_weight=recency_weight, frequency_weight=frequency_weight)

    def score(self, effective_importance: float, idle_us: int, recalls: int) -> float:
        """Return the score of an episode.

        Args:
            effective_importance: what is left of its importance.
            idle_us: microseconds since it was last recalled, or added.
            recalls: how often it was recalled.
        """
        recency = RECENCY_PER_HOUR ** (max(idle_us, 0) / HOUR_US)
        frequency = recalls / (recalls + 1)
        return float(effective_importance + self.recency_weight * recency + self.frequency_weight * frequency)
