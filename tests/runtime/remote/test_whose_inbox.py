"""Two users' commands for a session that is not there yet: it is the first one's, and nothing of the other's counts."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refold
from refold.events.session.events import CancelRequested, HistoryCleared, InputQueued
from refold.remote.protocol import Done, Inbox, InboxEntry, InboxOutcome, Refused, described_row
from refold.remote.rows import InboxCancel, InboxClear, InboxSend, SessionRow
from refold.sessions.access import describe_command
from tests.runtime.remote.conftest import begun, runtime_of

NEW = "s"

COMMANDS: dict[str, SessionRow] = {"send": InboxSend(text="hello"), "cancel": InboxCancel(), "clear": InboxClear()}

RECORDED = {"send": InputQueued, "cancel": CancelRequested, "clear": HistoryCleared}

puts = st.lists(st.tuples(st.sampled_from(["alice", "bob"]), st.sampled_from(sorted(COMMANDS))), max_size=4)


async def put(inbox: Inbox, user: str, what: str, key: str) -> InboxEntry:
    """Put there what a process of a user puts there that knows nothing of the others."""
    command, said = COMMANDS[what], describe_command(user, None)
    if isinstance(command, InboxSend):
        command = InboxSend(text=f"of {user}", user=user)
    return await inbox.put(NEW, described_row(command, said), key)


async def outcome(inbox: Inbox, entry: InboxEntry) -> InboxOutcome:
    while (found := await inbox.outcome(entry)) is None:  # noqa: ASYNC110 - what happens in threads sets no event
        await asyncio.sleep(0.001)
    return found


@given(before=puts, meanwhile=puts)
@settings(max_examples=8, deadline=None)
def test_a_session_is_its_first_users_however_the_commands_of_two_fall_together(
    tmp_path_factory: pytest.TempPathFactory, before: list[tuple[str, str]], meanwhile: list[tuple[str, str]]
) -> None:
    async def run(log: Path) -> None:
        inbox = await begun(log, "other")
        waiting = [await put(inbox, *each, f"{place}") for place, each in enumerate(before)]
        async with runtime_of(log) as runtime:
            waiting += await asyncio.gather(*(put(inbox, *each, f"m{place}") for place, each in enumerate(meanwhile)))
            outcomes = [await outcome(inbox, entry) for entry in waiting]
            session = await runtime.session(NEW)
            owner = (await session.state_at()).user
            events = [recorded.event async for recorded in session.events()]
        done = dict.fromkeys(COMMANDS, 0)
        for (user, what), found in zip([*before, *meanwhile], outcomes, strict=True):
            if isinstance(found, Done):
                assert user == owner
                done[what] += found.new
            elif owner is not None and user != owner:
                assert "another user's" in found.message or "no session" in found.message  # type: ignore[union-attr]
        for what, kind in RECORDED.items():
            assert sum(isinstance(event, kind) for event in events) == done[what]

    asyncio.run(run(tmp_path_factory.mktemp("log") / "events.db"))


async def test_a_command_behind_another_users_is_refused_also_where_no_runtime_owns_the_log(log: Path) -> None:
    inbox = await begun(log, NEW)
    late = [await put(inbox, user, "cancel", user) for user in ("alice", "bob")]
    alices, bobs = (refold.connect(log, patience_s=0).session(NEW, user=user) for user in ("alice", "bob"))
    for call in (bobs.cancel(), bobs.send("hello"), bobs.fork()):
        with pytest.raises(refold.CommandRejected, match="is another user's"):
            await call
    assert await alices.cancel()
    assert [type(await outcome(inbox, entry)) for entry in late] == [Done, Refused]
    with pytest.raises(refold.CommandRejected, match="is another user's"):
        await bobs.cancel()


async def test_a_command_is_repeated_under_its_key_though_metadata_is_said_once(log: Path) -> None:
    await begun(log, NEW)
    session = refold.connect(log, patience_s=0).session(NEW, metadata={"plan": "free"})
    assert await session.cancel(key="k") == await session.cancel(key="k")
    with pytest.raises(refold.CommandRejected, match="used before for another command"):
        await session.cancel(key="k", reason="another")
