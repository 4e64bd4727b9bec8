"""What has changed of late in a large state."""

from hypothesis import given
from hypothesis import strategies as st

from refold.events.kinds.indexing import CHANGES_KEPT, RecentChanges


def test_each_name_is_given_once_in_the_order_of_its_first_change() -> None:
    changes = RecentChanges[str]()
    for name in "abcab":
        changes.note(name)
    assert changes.since(0) == ["a", "b", "c"]
    assert changes.since(2) == ["c", "a", "b"]
    assert changes.since(5) == []


@given(st.integers(0, 5 * CHANGES_KEPT), st.integers(0, 6 * CHANGES_KEPT))
def test_the_last_ones_are_always_known_and_few_are_kept(count: int, since: int) -> None:
    changes = RecentChanges[str]()
    for number in range(count):
        changes.note(str(number))
    assert len(changes.names) <= 2 * CHANGES_KEPT
    known = changes.since(min(since, count))
    if known is None:
        assert count - since > CHANGES_KEPT
    else:
        assert known == [str(number) for number in range(min(since, count), count)]
