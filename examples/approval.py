"""An agent that asks before it acts; it needs no key and no network. Run it from the folder above this one.

    python examples/approval.py

It asks on the terminal whether a mail may be sent: yes, no, or always (to that person). What is left open when the
program ends, by Ctrl-C or a crash, waits in `approval.db`, and the next start asks again. Its model plays a script.
"""

import asyncio
import sys
import threading

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    Allow,
    Deny,
    ModelRequest,
    ProposedCall,
    ScriptedProvider,
    SessionId,
    ToolApprovalRequested,
    ToolResultBlock,
    ToolUse,
    tool,
    use,
)

MAILS = {"ann@example.com": "Lunch?", "bob@example.com": "Lunch?", "everybody@example.com": "Free lunch!"}


def recipient(to: str, text: str) -> str:
    """Return what "always" covers: mails to the same person."""
    return f"mail to {to}"


@tool(tier="confirm", action=recipient)
async def mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


terminal = threading.Lock()


def ask_on_the_terminal(session: SessionId, request: ToolApprovalRequested) -> Allow | Deny | None:
    """Have a person decide; it blocks, so it is a plain function, which runs in a thread.

    All calls that wait are asked about at once, so they take turns at the terminal.
    """
    with terminal:
        print(f"May {request.tool} run with {request.input}? [yes/no/always] ", end="", flush=True)
        answer = sys.stdin.readline().strip()
    match answer:
        case "yes":
            return Allow()
        case "always":
            return Allow(always=True)
        case "no":
            return Deny("The person at the terminal said no.")
        case _:
            return None  # Nobody has decided: the call goes on waiting.


def no_mass_mail(call: ProposedCall) -> Deny | None:
    """Refuse what nobody need be asked about."""
    return Deny("Not to everybody at once.") if call.input.get("to") == "everybody@example.com" else None


def next_step(request: ModelRequest) -> list[ToolUse] | str:
    """Send all mails, then say what came of it."""
    results = [block.text for block in request.messages[-1].content if isinstance(block, ToolResultBlock)]
    return "; ".join(results) if results else [use("mail", {"to": to, "text": text}) for to, text in MAILS.items()]


agent = Agent(
    name="secretary",
    config=AgentConfig(model="scripted"),
    provider=ScriptedProvider([next_step] * 100),
    tools=[mail],
    approval=ask_on_the_terminal,
    policy=no_mass_mail,
)


async def main() -> None:
    """Have the mails sent once; a start after that tells how it went."""
    async with AgentRuntime(agent, log="approval.db") as runtime:
        session = await runtime.session("lunch")
        result = await session.send("Invite them.", key="invitation")
        print(f"\n{result.output}")


if __name__ == "__main__":
    asyncio.run(main())
