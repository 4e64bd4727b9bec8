"""Steps from old shapes to today's: one version at a time, checked when they are put together."""

from typing import Any

import pytest

from refold.events.core.codec import Upcasters
from refold.events.core.content import JsonObject
from refold.events.core.errors import ConfigError


def renamed(data: JsonObject) -> JsonObject:
    return {"text": data["words"], **{name: value for name, value in data.items() if name != "words"}}


def shouted(data: JsonObject) -> JsonObject:
    return {**data, "text": str(data["text"]).upper()}


STEPS = {"said.v1": ("said.v2", renamed), "said.v2": ("said.v3", shouted)}


def test_an_old_shape_goes_through_every_step_to_todays_tag_and_stays_as_it_was_given() -> None:
    upcasters = Upcasters(STEPS, ["said.v3"])
    given: JsonObject = {"type": "said.v1", "words": "hi"}
    assert upcasters.upcast("said.v1", given) == {"type": "said.v3", "text": "HI"}
    assert given == {"type": "said.v1", "words": "hi"}
    assert upcasters.upcast("said.v2", {"type": "said.v2", "text": "hi"}) == {"type": "said.v3", "text": "HI"}


def test_an_unknown_tag_and_that_of_today_are_not_brought_anywhere() -> None:
    assert Upcasters(STEPS, ["said.v3"]).upcast("heard.v1", {}) is None
    assert Upcasters({}, ["said.v1"]).upcast("said.v1", {}) is None


@pytest.mark.parametrize(
    ("steps", "tags", "problem"),
    [
        (
            {"said.v1": ("said.v2", renamed)},
            ["said.v3"],
            r"said\.v1 -> said\.v2 end at 'said\.v2', which no event class has",
        ),
        (
            {"said.v1": ("said.v2", renamed), "said.v2": ("said.v1", shouted)},
            ["said.v3"],
            r"said\.v1 -> said\.v2 -> said\.v1 go in a circle",
        ),
        ({"said.v1": ("said.v1", renamed)}, ["said.v3"], "circle"),
        (STEPS, ["said.v2", "said.v3"], "begins at a tag that an event class still has"),
    ],
)
def test_steps_that_lead_nowhere_are_found_at_once(steps: Any, tags: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Upcasters(steps, tags)
