"""What a scope holds."""

import pytest

from refold.events.core.content import tool_uses
from tests.selfcheck.exhaustive.scope import EVERYDAY, FULL, TOOLS, Scope, answers, configuration


@pytest.mark.parametrize("scope", [*EVERYDAY, *FULL], ids=lambda scope: scope.name)
def test_a_model_never_says_the_same_thing_twice_and_never_calls_more_than_the_scope_allows(scope: Scope) -> None:
    said = answers(scope)
    assert len(set(map(repr, said))) == len(said)
    assert max(len(tool_uses(answer.content)) for answer in said) == scope.calls
    assert all(len(answer.verdicts) == len(tool_uses(answer.content)) for answer in said)


def test_every_ordered_pair_of_calls_is_said() -> None:
    scope = Scope(name="pairs", tools=("look", "write"), refusals=0)
    named = [
        [use.name for use in tool_uses(answer.content)] for answer in answers(scope) if answer.stop_reason == "tool_use"
    ]
    assert named == [
        ["look"],
        ["write"],
        ["look", "look"],
        ["look", "write"],
        ["write", "look"],
        ["write", "write"],
    ]


def test_the_full_scopes_know_every_tool_and_every_run_has_a_time_limit() -> None:
    assert {tool for scope in FULL for tool in scope.tools} == {spec.name for spec in TOOLS}
    assert all(configuration(scope).run_timeout_s for scope in (*EVERYDAY, *FULL))
