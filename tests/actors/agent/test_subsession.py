"""How a child session is named and linked, for any name of its parent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.actors.agent.subsession import (
    ancestors_of,
    call_of_child,
    child_session,
    children_prefix,
    grace_of_child,
    parent_in,
    parent_of,
)
from refold.events.core.ids import EventRef, SessionId, StreamName, ToolCallId, checked_identifier
from refold.events.core.records import EncodedBatch
from refold.stores import InMemoryStore

identifiers = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20) | st.sampled_from(
    ["ä" * 200, "ä" * 256, "x" * 448, "x" * 449, "x" * 512]
)
calls = st.builds(lambda version, index: ToolCallId(f"call_{version}_{index}"), st.integers(0), st.integers(0, 99))


@given(identifiers, calls)
def test_a_childs_id_is_an_id_and_tells_its_call(parent: str, call: ToolCallId) -> None:
    child = child_session(SessionId(parent), call)
    assert checked_identifier(child, "session id") == child
    assert call_of_child(child) == call
    assert child.startswith(children_prefix(parent))


@given(st.sets(st.tuples(identifiers, calls), min_size=2, max_size=2))
def test_different_calls_have_different_children(places: set[tuple[str, ToolCallId]]) -> None:
    one, other = (child_session(SessionId(parent), call) for parent, call in places)
    assert one != other


@given(identifiers)
def test_the_children_of_children_are_found_below_them_without_end(parent: str) -> None:
    session = SessionId(parent)
    for _ in range(60):
        session = child_session(session, ToolCallId("call_6_0"))
        checked_identifier(session, "session id")


async def log_of(*links: tuple[str, str | None]) -> InMemoryStore:
    """Return a log of streams, each with the event that caused its first one."""
    store = InMemoryStore()
    for stream, cause in links:
        first = EncodedBatch(
            stream=StreamName(stream),
            expected_version=0,
            at=1,
            events=(b'{"type":"x"}',),
            causation=EventRef(cause) if cause is not None else None,
        )
        await store.append([first])
    return store


@pytest.mark.parametrize(
    ("cause", "parent"),
    [
        (None, None),
        ("session/s@3", None),
        ("session/a@b/c@7", "a@b/c"),
        ("timer/t@1", None),
    ],
)
async def test_the_parent_is_the_session_of_the_event_that_caused_the_first_one(
    cause: str | None, parent: str | None
) -> None:
    store = await log_of(("session/s", cause))
    assert parent_in((await store.read_stream("session/s"))[0]) == parent
    assert await parent_of(store, SessionId("s")) == parent
    assert await parent_of(store, SessionId("nobody")) is None


async def test_ancestors_end_also_where_a_log_was_made_up() -> None:
    store = await log_of(("session/a", "session/c@1"), ("session/b", "session/a@1"), ("session/c", "session/b@1"))
    first = (await store.read_stream("session/c"))[0]
    assert await ancestors_of(store, SessionId("c"), first) == ("b", "a")
    store = await log_of(("session/b", "session/lost@1"), ("session/c", "session/b@1"))
    first = (await store.read_stream("session/c"))[0]
    assert await ancestors_of(store, SessionId("c"), first) == ("b", "lost")


def test_each_child_has_less_grace_than_its_parent_and_more_than_half_of_it_all() -> None:
    graces = [grace_of_child(5.0, depth) for depth in range(20)]
    assert graces[0] == 5.0
    assert graces == sorted(set(graces), reverse=True)
    assert graces[-1] > 2.5
