"""Cancellation tokens: once, from any thread, before any loop, and without holding on to anybody."""

import asyncio
import gc
import threading
from weakref import ref

import pytest

from refold.actors.cancellation import CancellationToken


@pytest.fixture
def token() -> CancellationToken:
    return CancellationToken()


def test_the_first_cancel_counts_and_keeps_its_reason(token: CancellationToken) -> None:
    assert not token.cancelled
    token.cancel("the user left")
    token.cancel("another reason")
    assert token.cancelled
    assert token.reason == "the user left"


def test_callbacks_run_once_in_the_order_they_were_added(token: CancellationToken) -> None:
    called: list[str] = []
    token.on_cancel(lambda: called.append("first"))
    forget = token.on_cancel(lambda: called.append("unwanted"))
    token.on_cancel(lambda: called.append("second"))
    forget()
    forget()
    token.cancel()
    token.cancel()
    assert called == ["first", "second"]


def test_a_callback_added_after_the_cancel_runs_at_once(token: CancellationToken) -> None:
    token.cancel()
    called: list[str] = []
    forget = token.on_cancel(lambda: called.append("late"))
    forget()
    assert called == ["late"]


def test_a_callback_that_raises_keeps_no_other_from_being_called(
    token: CancellationToken, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    def fail() -> None:
        raise ValueError("broken callback")

    token.on_cancel(fail)
    token.on_cancel(lambda: called.append("second"))
    token.cancel()
    assert called == ["second"]
    assert "broken callback" in caplog.text


def test_raise_if_cancelled_raises_what_except_exception_does_not_swallow(token: CancellationToken) -> None:
    token.raise_if_cancelled()
    token.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        token.raise_if_cancelled()


async def test_waiting_ends_when_another_thread_cancels(token: CancellationToken) -> None:
    waiting = asyncio.create_task(token.wait())
    await asyncio.sleep(0)
    thread = threading.Thread(target=token.cancel)
    thread.start()
    await waiting
    thread.join()
    await token.wait()


async def test_a_waiter_that_is_cancelled_leaves_the_token_alone(token: CancellationToken) -> None:
    waiting = asyncio.create_task(token.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    token.cancel()
    assert token.cancelled


def test_cancelling_after_the_waiters_loop_was_closed_is_quiet(token: CancellationToken) -> None:

    async def give_up_waiting() -> None:
        task = asyncio.ensure_future(token.wait())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(give_up_waiting())
    token.cancel()
    assert token.cancelled


def test_children_are_cancelled_with_their_parent_and_not_the_other_way() -> None:
    parent = CancellationToken()
    first, second = parent.child(), parent.child()
    first.cancel("only the first")
    assert not parent.cancelled
    parent.cancel("all")
    assert (first.reason, second.reason) == ("only the first", "all")
    assert parent.child().cancelled


def test_a_chain_of_children_does_not_break_where_nobody_holds_the_middle() -> None:
    parent = CancellationToken()
    grandchild = parent.child().child()
    gc.collect()
    parent.cancel("from the top")
    assert grandchild.reason == "from the top"


def test_a_long_lived_parent_does_not_collect_children() -> None:
    parent = CancellationToken()
    children = [parent.child() for _ in range(100)]
    last = ref(children[-1])
    children.clear()
    assert last() is None
    assert not parent._callbacks
