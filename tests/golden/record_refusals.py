"""Record a sample log of requests that a provider refuses, and of what was set aside for it; kept here for ever.

See `record.py` for how it is run.
"""

from pathlib import Path

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    ImageBlock,
    ModelRequest,
    ModelResponse,
    ProviderError,
    Summarising,
    TextBlock,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.model.context_window import SUMMARY_PROMPT

BROKEN = ImageBlock(media_type="image/png", data=b"broken")


class Picky:
    """Takes no image, no documents of more than a few hundred characters at once, and no summaries of long ones."""

    def __init__(self) -> None:
        scanning = ModelResponse(content=(use("scan"),), stop_reason="tool_use")
        self.script = [say("Hello."), scanning, say("It is blurred."), say("I see nothing."), say("Nothing.")]

    async def complete(self, request: ModelRequest) -> ModelResponse:
        if "image/png" in repr(request.messages):
            raise ProviderError("Could not process image", kind="invalid_request", status=400)
        size = sum(len(message.text) for message in request.messages)
        if size > 800:
            raise ProviderError("prompt is too long", kind="context_too_long", status=400)
        if request.system_prompt == SUMMARY_PROMPT:
            return say("They looked at scans.")
        return self.script.pop(0) if self.script else say("Yes.")


@tool(tier="observe", effect="pure")
def scan() -> list[TextBlock | ImageBlock]:
    """Scan a page."""
    return [TextBlock(text="A page."), BROKEN]


def viewer() -> Agent:
    config = AgentConfig(model="m")
    return Agent(name="viewer", config=config, provider=Picky(), tools=[scan], context=Summarising(10_000))


async def record(log: Path) -> None:
    """Write the log."""
    async with AgentRuntime(viewer(), log=log, clock=ManualClock(), inbox_poll_s=0) as runtime:
        session = await runtime.session("alice")
        for text in ("Hello?", "Scan it."):
            await session.send(text)
        await session.send([TextBlock(text="And this?"), BROKEN, TextBlock(text="It is mine.")])
        asides = [event.version async for event in session.events() if type(event.event).__name__ == "InputSetAside"]
        await session.take_back(asides[-1], reason="the model is said to take it now")
        await session.send("And now?")
        await session.set_aside(3, reason="private")
        for number in range(8):
            await session.send(f"{number} " + "x" * 150)
