"""Every story of `stories/` goes as it is told; `story.py` says how they are written.

What `tests/conformance` says through sessions of retries, approvals, steps, inputs for later and tools that end a run
is not said here again.
"""

import pytest

from tests.events.story import Story, play, stories


@pytest.mark.parametrize("story", stories())
def test_a_session(story: Story) -> None:
    play(story)
