"""The steps of cases: each is a function with the name of what it does to the session, or of what it waits for."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec

import pytest

from refold import CommandRejected, Message, ToolApprovalRequested
from refold.actors import ManualClock
from refold.events.core.content import text_of
from tests.conformance.cases import End, Play, Step
from tests.conformance.sessions import types_of

P = ParamSpec("P")


def step(act: Callable[Concatenate[Play, P], Awaitable[Any]]) -> Callable[P, Step]:
    """Make a step of a function that takes the playing first."""
    return wraps(act)(lambda *args, **named: Step(lambda play: act(play, *args, **named)))


def once(act: Callable[Concatenate[Play, P], Awaitable[Any]]) -> Callable[P, Step]:
    """Make a step that a caller who does not know how far he came may not do again."""
    return wraps(act)(lambda *args, **named: Step(lambda play: act(play, *args, **named), repeatable=False))


# Sending


@step
async def send(
    play: Play, /, content: Any = "go", ends: End | None = None, turns: int | None = None, **more: Any
) -> None:
    """Send an input, and compare how its run ends. The option `token` gives it the token of the case."""
    given = play.keyed(_sent(play, more))
    result = await play.outcome(asyncio.create_task(play.session.send(content, **given)))
    play.compare(result, ends, turns)
    if given.get("key"):
        play.ended[given["key"]] = content, result


def _sent(play: Play, options: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(options)
    return {"cancel": play.token} | given if given.pop("token", False) else given


@step
async def begin(play: Play, /, content: Any = "go", **options: Any) -> None:
    """Send an input, and go on once it is durable; `ends` waits for its run."""
    given = play.keyed(_sent(play, options))
    heard = len(play.heard)

    def hear(recorded: Any) -> None:
        play.heard.append(type(recorded.event).__name__)
        play.changed.set()

    caller = asyncio.create_task(play.session.send(content, on_event=hear, **given))
    caller.add_done_callback(lambda _: play.changed.set())
    play.callers.append(caller)

    async def found() -> bool:
        keys = [getattr(event, "key", None) for event in await play.events()] if given.get("key") else []
        return given.get("key") in keys or len(play.heard) > heard or caller.done()

    await play.until(found)
    if caller.done():
        caller.result()
    await play.session.history()  # What was sent with a known key has reached the session, too.


def join(content: Any = "also this", **options: Any) -> Step:
    """Send an input for now, and go on once it is durable."""
    return begin(content, now=True, **options)


@step
async def ends(play: Play, /, *expected: End, turns: int | None = None, together: bool = False) -> None:
    """Wait for the runs of all that was begun, in order, and compare how each ends; or that it was one run."""
    assert len(play.callers) == len(expected)
    results = [await play.outcome(caller) for caller in play.callers]
    for result, end in zip(results, expected, strict=True):
        play.compare(result, end, turns)
    assert not together or results == results[:1] * len(results)
    play.callers.clear()


@step
async def told(play: Play, /, place: int, end: End) -> None:
    """Compare how one of the runs that were begun ends, whose caller then waits no more."""
    play.compare(await play.outcome(play.callers.pop(place)), end)


@step
async def waits(play: Play) -> None:
    """Check that no caller has been told of the end of a run; after a crash, all may have been told."""
    await play.session.history()
    assert not (play.live and any(caller.done() for caller in play.callers))


@once
async def turn(play: Play, /, content: Any = None, key: str | None = None, **seen: Any) -> None:
    """Let the run go one turn further, and compare what `turn_ends` compares."""
    await begin_turn(content, key=key).act(play)
    await turn_ends(**seen).act(play)


@once
async def begin_turn(play: Play, /, content: Any = None, **options: Any) -> None:
    play.callers.append(asyncio.create_task(play.session.step(content, **options)))


@once
async def turn_ends(play: Play, /, ends: End | None = None, calls: Sequence[str] | None = None) -> None:
    """Compare how the run ends in a turn, if it does, and the results of the calls of the turn."""
    turn = await play.outcome(play.callers.pop())
    play.turns.append(turn)
    assert calls is None or [result.text for _, result in turn.calls] == list(calls)
    assert (turn.result is None) == (ends is None)
    if turn.result is not None:
        play.compare(turn.result, ends)


@once
async def remind(play: Play, /, content: Any, at: Any, **options: Any) -> None:
    """Set a reminder, whose run is kept by its content, and is the same whenever that is set again."""
    run = await play.session.remind(content, at=at, **options)
    assert play.kept.setdefault(content, run) == run


@step
async def clear(play: Play, /, **options: Any) -> None:
    await play.session.clear(**play.keyed(options))


@step
async def bring(play: Play, /, *messages: Message, **options: Any) -> None:
    """Import a history."""
    await play.session.import_history(messages, **play.keyed(options))


# Cancelling, deciding and resuming


@step
async def cancel(play: Play, /, run: Callable[[Play], Any] | None = None, **options: Any) -> None:
    """Cancel the run under way, or another one."""
    await play.session.cancel(**play.keyed(options if run is None else {"run": run(play), **options}))


@once
async def cancel_token(play: Play, /, reason: Any = None) -> None:
    play.token.cancel(reason)


@once
async def cancel_caller(play: Play, /, place: int = -1) -> None:
    """Cancel the task of one who waits for a run, by default the last who began; he is told nothing else."""
    caller = play.callers.pop(place)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


@step
async def decide(play: Play, /, allow: bool, call: int | None = None, **options: Any) -> None:
    """Decide about the first call that waits for it, or the one that was the nth to be asked about, from 0."""

    async def found() -> Any:
        if call is None:
            return [waiting.call for waiting in await play.session.approvals()][:1]
        return [event.call for event in await play.events(ToolApprovalRequested)][call : call + 1]

    if play.place not in play.kept:
        (play.kept[play.place],) = await play.until(found)
    await play.session.decide(play.kept[play.place], allow=allow, **play.keyed(options))


@step
async def resume(play: Play) -> None:
    await play.session.resume()


# Waiting and letting go


@step
async def until(play: Play, /, kind: str, count: int = 1) -> None:
    """Wait until so many events of a type are in the log."""

    async def found() -> bool:
        return (await types_of(play.session)).count(kind) >= count

    await play.until(found)


def approval_asked(count: int = 1) -> Step:
    """Wait until a person was asked about so many calls."""
    return until("ToolApprovalRequested", count)


@step
async def begun(play: Play, /, count: int) -> None:
    """Wait until so many tools that wait have begun."""

    async def found() -> bool:
        return len(set(play.bench.begun)) >= count

    await play.until(found)


@step
async def ran(play: Play, /, count: int) -> None:
    """Wait until tools that wait have begun so often, those included that a crash has cut."""

    async def found() -> bool:
        return len(play.bench.begun) >= count

    await play.until(found)


@step
async def asked(play: Play, /, place: int = 0) -> None:
    """Wait until the model is asked for an answer that is held."""
    await play.held[place].asked.wait()


@step
async def let_go(play: Play, /, *names: str) -> None:
    """Let the tools with these names return; without a name, let all return and the answers that are held come."""
    for name in names or play.bench.begun:
        play.bench.gates[name].set()
    if not names:
        await answer().act(play)


@step
async def answer(play: Play) -> None:
    """Let the answers that are held come."""
    for held in play.held:
        held.gate.set()


@once
async def advance(play: Play, /, *seconds: float) -> None:
    """Let time pass, a little at a time."""
    assert play.clock is not None
    for each in seconds:
        await play.clock.advance(each)


# Restarts


@once
async def restart(play: Play, /, *, after_s: float = 0, **changed: Any) -> None:
    """Close the runtime in order, and open one with another configuration or options, so many seconds later."""
    await play.close()
    await _open_later(play, after_s, changed)


def crash_and_restart(*, after_s: float = 0, **changed: Any) -> Step:
    """End the runtime as a crash does, and open another one."""

    async def act(play: Play) -> None:
        await play.die()
        await _open_later(play, after_s, changed)

    return Step(act, repeatable=False, crashes=True)


async def _open_later(play: Play, after_s: float, changed: dict[str, Any]) -> None:
    if play.clock is not None:
        play.clock = ManualClock(play.clock.now_us() + round(after_s * 1_000_000))
    await play.open(**changed)


# Looking


@step
async def refused(play: Play, /, match: str | None, *steps: Step, error: Any = CommandRejected) -> None:
    """Check that each of the steps is refused in such words."""
    for step in steps:
        with pytest.raises(error, match=match):
            await step.act(play)


@step
async def check(play: Play, /, look: Callable[[Play], Any], expected: Any = True) -> None:
    """Compare what only the live playing shows."""
    if play.live:
        found = look(play)
        assert (await found if inspect.isawaitable(found) else found) == expected


def recorded(kind: type[Any], fields: str, *values: Any) -> Step:
    """Compare one field or more of all events of a type, of which content is compared as text."""

    async def found(play: Play) -> list[Any]:
        return [shown_value(attrgetter(*fields.split())(event)) for event in await play.events(kind)]

    return check(found, list(values))


def shown_value(value: Any) -> Any:
    """Return the text of content, and of each field that is content."""
    if isinstance(value, tuple) and value and all(hasattr(block, "provider_data") for block in value):
        return text_of(value)
    return tuple(map(shown_value, value)) if isinstance(value, tuple) else value


def requested(count: int) -> Step:
    """Check how many requests have reached the model so far."""
    return check(lambda play: len(play.requests), count)


def awaited(*calls: str) -> Step:
    """Check which calls wait for a decision."""

    async def waiting(play: Play) -> tuple[str, ...]:
        return tuple(each.call for each in await play.session.approvals())

    return check(waiting, calls)


def last(*kinds: str) -> Step:
    """Check that the log of the session ends with events of these types."""

    async def types(play: Play) -> list[str]:
        return (await types_of(play.session))[-len(kinds) :]

    return check(types, list(kinds))


def does(what: Callable[[Play], Awaitable[Any]]) -> Step:
    """Do something that is no other step."""
    return Step(what, repeatable=False)
