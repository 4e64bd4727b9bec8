"""An input on its way to its session, through the hooks of middleware; see `refold.actors.middleware`."""

from typing import cast

import msgspec

from refold.actors.middleware import Hooks, UserBlocks
from refold.events.content import Message
from refold.events.ids import PayloadHash, SessionId
from refold.events.payloads import restored, spill
from refold.events.session_commands import SendInput
from refold.given_input import input_blocks


async def hooked_input(
    hooks: Hooks, session: SessionId, command: SendInput, payloads: dict[PayloadHash, bytes]
) -> tuple[SendInput, dict[PayloadHash, bytes]]:
    """Return an input as it is sent, with the one that was given beside it where they differ, and their payloads.

    Raises:
        AgentLoopError: middleware failed; nothing is sent.
        CommandRejected: what middleware made of it is empty, or cannot be recorded.
    """
    given = cast("UserBlocks", restored(Message("user", command.content), payloads).content)
    content, more = spill(await hooks.user_message(session, given, input_blocks))
    if content == command.content:
        return command, payloads
    return msgspec.structs.replace(command, content=content, original=command.content), {**payloads, **more}
