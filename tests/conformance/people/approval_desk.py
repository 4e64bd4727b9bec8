"""What the tests of approvals and policies share: handlers that a case answers for, or that a function does."""

import asyncio
from collections.abc import Callable
from typing import Any

from refold import ToolApprovalRequested
from tests.conformance.cases import Play
from tests.conformance.steps import once


class Desk:
    """An approval handler that keeps what it is asked, and answers each as the test says."""

    def __init__(self) -> None:
        self.asked: list[ToolApprovalRequested] = []
        self.sessions: list[str] = []
        self.answers: list[asyncio.Future[Any]] = []
        self._changed = asyncio.Event()

    async def __call__(self, session: str, request: ToolApprovalRequested) -> Any:
        self.asked.append(request)
        self.sessions.append(session)
        self.answers.append(asyncio.get_running_loop().create_future())
        self._changed.set()
        return await self.answers[-1]

    async def requests(self, count: int = 1) -> list[ToolApprovalRequested]:
        while len(self.asked) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.asked


def at_desk(play: Play) -> dict[str, Any]:
    """The options of a case whose approvals are put to a desk."""
    play.kept["desk"] = Desk()
    return {"approval": play.kept["desk"]}


def desk_of(play: Play) -> Desk:
    desk: Desk = play.kept["desk"]
    return desk


@once
async def desk_says(play: Play, place: int, answer: Any) -> None:
    """Let the desk answer what it was asked, counted from 0."""
    await desk_of(play).requests(place + 1)
    desk_of(play).answers[place].set_result(answer)


def handled(answer: Callable[[str, ToolApprovalRequested], Any]) -> Callable[[Play], dict[str, Any]]:
    """The options of a case whose approvals are put to a function; what it was asked about is kept as `handled`."""

    def options(play: Play) -> dict[str, Any]:
        async def handler(session: str, request: ToolApprovalRequested) -> Any:
            play.kept.setdefault("handled", []).append(request.call)
            return answer(session, request)

        return {"approval": handler}

    return options
