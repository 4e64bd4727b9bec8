"""Steps from old shapes to today's: one version at a time, checked when they are put together."""

import pytest

from refold.events.core.codec import Upcasters
from refold.events.core.content import JsonObject
from refold.events.core.errors import ConfigError


def renamed(data: JsonObject) -> JsonObject:
    return {"text": data["words"], **{name: value for name, value in data.items() if name != "words"}}


def shouted(data: JsonObject) -> JsonObject:
    return {**data, "text": str(data["text"]).upper()}


STEPS = {"said.v1": ("said.v2", renamed), "said.v2": ("said.v3", shouted)}


def test_an_old_shape_goes_through_every_step_to_todays_tag() -> None:
    upcasters = Upcasters(STEPS, ["said.v3"])
    assert upcasters.upcast("said.v1", {"type": "said.v1", "words": "hi"}) == {"type": "said.v3", "text": "HI"}
    assert upcasters.upcast("said.v2", {"type": "said.v2", "text": "hi"}) == {"type": "said.v3", "text": "HI"}


def test_an_unknown_tag_is_not_brought_anywhere() -> None:
    assert Upcasters(STEPS, ["said.v3"]).upcast("heard.v1", {}) is None


def test_todays_tag_needs_no_step() -> None:
    assert Upcasters({}, ["said.v1"]).upcast("said.v1", {}) is None


def test_what_was_given_stays_as_it_was() -> None:
    given: JsonObject = {"type": "said.v1", "words": "hi"}
    Upcasters(STEPS, ["said.v3"]).upcast("said.v1", given)
    assert given == {"type": "said.v1", "words": "hi"}


def test_a_gap_is_found_when_the_steps_are_put_together() -> None:
    with pytest.raises(ConfigError, match=r"said\.v1 -> said\.v2 end at 'said\.v2', which no event class has"):
        Upcasters({"said.v1": ("said.v2", renamed)}, ["said.v3"])


def test_a_circle_is_found_when_the_steps_are_put_together() -> None:
    with pytest.raises(ConfigError, match=r"said\.v1 -> said\.v2 -> said\.v1 go in a circle"):
        Upcasters({"said.v1": ("said.v2", renamed), "said.v2": ("said.v1", shouted)}, ["said.v3"])
    with pytest.raises(ConfigError, match="circle"):
        Upcasters({"said.v1": ("said.v1", renamed)}, ["said.v3"])


def test_a_step_from_a_tag_of_today_is_found_when_the_steps_are_put_together() -> None:
    with pytest.raises(ConfigError, match="begins at a tag that an event class still has"):
        Upcasters(STEPS, ["said.v2", "said.v3"])
