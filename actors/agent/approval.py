"""The approval actor: asks the application's approval handler about calls that wait for a decision.

Its address is `approval/<agent>`. The wait itself is durable and belongs to the session; this actor only passes it on
to a handler, if there is one, and the handler's answer back. The rule: a handler that fails, or that leaves the
decision to others, changes nothing, and the call goes on waiting.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from refold.actors.calls.context import HookContext, running_context
from refold.actors.calls.policy import Allow, Deny, changed_arguments
from refold.actors.calls.protocols import ToolRunner
from refold.actors.kernel.actor import Actor
from refold.actors.kernel.ref import ActorRef, Vital
from refold.actors.shell.effects import tell_end
from refold.actors.shell.messages import CancelEffect, EffectEnded
from refold.events.core.cleaning import recorded_reason
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import SessionId
from refold.events.session.commands import DecideApproval
from refold.events.session.events import ToolApprovalRequested

log = logging.getLogger("refold.approval")

APPROVAL_KIND = "approval"
"""Kind of an approval actor's address."""

AskHandler = Callable[[SessionId, ToolApprovalRequested], Awaitable[object]]
"""Asks the application; what it returns is checked here."""


class StartApproval(Vital, frozen=True, kw_only=True):
    """Have the handler decide about a call."""

    key: str
    session: SessionId
    reply_to: ActorRef
    request: ToolApprovalRequested
    where: HookContext
    """For whom the handler is called."""


class ApprovalActor(Actor):
    """Passes waiting calls on to a handler."""

    def __init__(self, ask: AskHandler | None, tools: ToolRunner) -> None:
        self._ask = ask
        self._tools = tools
        self._waiting: dict[tuple[str, str], tuple[StartApproval, asyncio.Task[None] | None]] = {}

    def on_receive(self, message: StartApproval | CancelEffect) -> None:
        match message:
            case StartApproval():
                place = (message.reply_to.address, message.key)
                if place not in self._waiting:
                    ask = self._ask
                    self._waiting[place] = (message, None)
                    if ask is not None:
                        self._have_asked(ask, message)
            case CancelEffect(asker=asker, key=key):
                waiting, task = self._waiting.pop((asker, key), (None, None))
                if task is not None:
                    task.cancel()
                if waiting is not None:
                    tell_end(waiting.reply_to, EffectEnded(key=key))

    def on_failure(self, *_error: object, **_error_by_name: object) -> None:
        for waiting, _ in self._waiting.values():
            tell_end(waiting.reply_to, EffectEnded(key=waiting.key))

    def on_cancelled(self) -> None:
        self.on_failure()

    def _have_asked(self, ask: AskHandler, message: StartApproval) -> None:
        task = self.spawn(self._have_decided(ask, message), name=message.key)
        self._waiting[message.reply_to.address, message.key] = (message, task)
        task.add_done_callback(lambda task: self._asked(ask, message, task))

    def _asked(self, ask: AskHandler, message: StartApproval, task: "asyncio.Task[None]") -> None:
        """Ask again where other code has cancelled the question."""
        waiting = self._waiting.get((message.reply_to.address, message.key))
        if task.cancelled() and waiting is not None and waiting[1] is task and self.lives:
            self._have_asked(ask, message)

    async def _have_decided(self, ask: AskHandler, message: StartApproval) -> None:
        place, request = (message.reply_to.address, message.key), message.request
        command: DecideApproval | None = None
        running_context.set(message.where)
        try:
            command = _decision(request, await ask(message.session, request), self._tools)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # Nobody need decide any more, or this actor stops and the call waits on as after a crash.
            log.warning("the approval handler let out a CancelledError of its own; %s goes on waiting", request.call)
        except KeyboardInterrupt:
            raise
        except CommandRejected as error:
            log.error("the approval handler's answer about %s of session %s: %s", request.call, message.session, error)
        except BaseException:  # The border to user code: the call goes on waiting for a decision.
            log.exception(
                "the approval handler failed; %s of session %s goes on waiting", request.call, message.session
            )
        if command is not None and self._waiting.pop(place, None) is not None:
            tell_end(message.reply_to, EffectEnded(key=message.key, command=command))


def _decision(request: ToolApprovalRequested, answer: object, tools: ToolRunner) -> DecideApproval | None:
    match answer:
        case None:
            return None
        case Allow(always=always, arguments=given):
            arguments = changed_arguments(tools, request.tool, given) if given is not None else None
            return DecideApproval(call=request.call, allowed=True, always=bool(always), input=arguments)
        case Deny(reason=reason):
            return DecideApproval(call=request.call, allowed=False, reason=recorded_reason(reason))
        case _:
            text = "the approval handler answered %s instead of Allow, Deny or None; %s goes on waiting"
            log.error(text, type(answer).__name__, request.call)
            return None
