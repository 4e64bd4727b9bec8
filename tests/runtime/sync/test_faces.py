"""What one face of a runtime can do, the other can: what is public is compared name by name."""

import inspect
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest

import refold

FACES: list[tuple[type, type]] = [
    (refold.AgentRuntime, refold.SyncRuntime),
    (refold.Session, refold.SyncSession),
    (refold.RunStream, refold.SyncRunStream),
    (refold.RunHandle, refold.SyncRunHandle),
    (refold.RunReader, refold.SyncRunReader),
    (refold.Subscription, refold.SyncSubscription),
    (refold.Connection, refold.SyncConnection),
    (refold.ConnectedSession, refold.SyncConnectedSession),
    (refold.ConnectedRun, refold.SyncConnectedRun),
    (refold.ConnectedReader, refold.SyncConnectedReader),
    (refold.ConnectedHosted, refold.SyncConnectedHosted),
]

NOT_FOR_THREADS = {
    refold.AgentRuntime: {
        "context",  # What its parts share, on the loop.
        "event_bus",  # Used on the loop only; `subscribe` and `follow` are the ways to it.
        "open",  # A SyncRuntime is open.
        "require_open",  # Asks whether this is the loop.
        "store",  # Its methods are awaited; reach it by `asynchronous`, on the loop.
    },
    refold.Session: set[str](),
    refold.RunStream: set[str](),
    refold.RunHandle: set[str](),
    refold.RunReader: set[str](),
    refold.Subscription: {
        "begin_wait",
        "expect",
        "go_back",
        "end",
        "joined",
        "put",
        "restart",
        "take",
        "told",
        "wants",
    },  # Its publisher's.
    refold.Connection: {
        "clock",
        "log",
        "patience_s",
        "wait_for_file",  # Reach them by `asynchronous`.
    },
    refold.ConnectedSession: {"connection"},
    refold.ConnectedRun: set[str](),
    refold.ConnectedReader: set[str](),
    refold.ConnectedHosted: {"connection"},
}

OTHER_NAMES = {"aclose": "close"}

WRITTEN_FOR_THREADS = {"aclose", "close", "run", "session", "submit"}
"""Coroutines whose counterparts have a docstring of their own."""

IN_THREADS = {
    "Session": "SyncSession",
    "RunStream": "SyncRunStream",
    "RunHandle": "SyncRunHandle",
    "RunReader": "SyncRunReader",
    "Subscription": "SyncSubscription",
    "AsyncIterator": "Iterator",
    "ConnectedSession": "SyncConnectedSession",
    "ConnectedRun": "SyncConnectedRun",
    "ConnectedReader": "SyncConnectedReader",
    "ConnectedHosted": "SyncConnectedHosted",
}
"""What a face gives instead of what the other gives."""


def public_names(face: type) -> set[str]:
    """Return the public attributes of a class and those that its `__init__` sets."""
    source = inspect.getsource(face.__init__)  # type: ignore[misc]
    set_in_init = {
        line.split("=")[0].split(":")[0].strip().removeprefix("self.")
        for line in source.splitlines()
        if line.strip().startswith("self.") and "=" in line
    }
    return {name for name in {*dir(face), *set_in_init} if not name.startswith("_")}


def methods_of(face: type) -> list[str]:
    return sorted(name for name in public_names(face) if callable(getattr(face, name, None)))


def parameters_of(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Return what a call of a method may give: name, kind and default of each parameter, and its type."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    return [(parameter.name, parameter.kind, (parameter.default, parameter.annotation)) for parameter in parameters]


def words_of(function: Callable[..., Any]) -> list[str]:
    """Return the names in what a method is said to return, without their modules."""
    returned = inspect.signature(function, eval_str=True).return_annotation
    text = returned.__name__ if isinstance(returned, type) and not get_args(returned) else str(returned)
    return re.findall(r"\w+", re.sub(r"\w+\.", "", text))


PAIRS = [
    pytest.param(awaited, blocking, name, id=f"{awaited.__name__}.{name}")
    for awaited, blocking in FACES
    for name in methods_of(awaited)
    if name not in NOT_FOR_THREADS[awaited]
]


@pytest.mark.parametrize(("awaited", "blocking"), FACES, ids=lambda face: face.__name__)
def test_both_faces_have_the_same_names(awaited: type, blocking: type) -> None:
    names = {OTHER_NAMES.get(name, name) for name in public_names(awaited) - NOT_FOR_THREADS[awaited]}
    assert public_names(awaited) >= NOT_FOR_THREADS[awaited]
    assert public_names(blocking) - {"loop_thread", "asynchronous", "close"} == names - {"close"}


@pytest.mark.parametrize(("awaited", "blocking", "name"), PAIRS)
def test_a_method_takes_and_gives_the_same_in_both_faces(awaited: type, blocking: type, name: str) -> None:
    one, other = getattr(awaited, name), getattr(blocking, OTHER_NAMES.get(name, name))
    assert parameters_of(other) == parameters_of(one)
    given = words_of(one)
    assert words_of(other) == [IN_THREADS.get(word, word) for word in given]


@pytest.mark.parametrize(("awaited", "blocking", "name"), PAIRS)
def test_a_blocking_method_blocks_and_says_what_it_promises(awaited: type, blocking: type, name: str) -> None:
    one, other = getattr(awaited, name), getattr(blocking, OTHER_NAMES.get(name, name))
    assert not inspect.iscoroutinefunction(other)
    assert not inspect.isasyncgenfunction(other)
    promise = inspect.getdoc(other)
    assert promise
    if inspect.iscoroutinefunction(one) and name not in WRITTEN_FOR_THREADS:
        assert promise.startswith(inspect.getdoc(one) or "")
        assert "blocks the calling thread" in promise


@pytest.mark.parametrize(("awaited", "blocking"), FACES, ids=lambda face: face.__name__)
def test_a_face_is_used_by_with_or_for_where_the_other_is_by_async_with_or_async_for(
    awaited: type, blocking: type
) -> None:
    if awaited not in (refold.AgentRuntime, refold.Connection):  # Whose own `with` gives the face.
        for there, here in (("__aenter__", "__enter__"), ("__aexit__", "__exit__"), ("__anext__", "__next__")):
            assert hasattr(awaited, there) == hasattr(blocking, here)
    assert not {"__aenter__", "__aiter__", "__await__"} & set(dir(blocking))
