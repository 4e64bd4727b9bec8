"""An agent in a plain script, without any `async`; it needs no key and no network.

    python examples/plain_script.py

Run it twice: the second time it knows the answer, since the key says that it is the same question. Its model plays a
script: put a provider of a real model there, and nothing else changes.
"""

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use


@tool(tier="observe", effect="pure")
def weather(city: str) -> str:
    """Forecast for a city."""
    return f"{city}: sunny, 24 degrees"


provider = ScriptedProvider([use("weather", {"city": "Lisbon"}), say("It will be sunny in Lisbon.")])

with AgentRuntime(AgentConfig(model="scripted"), provider=provider, tools=[weather], log="plain.db") as runtime:
    session = runtime.session("alice")
    result = session.send(
        "Weather in Lisbon?", key="question 1"
    )  # Ctrl-C here cancels the run, and says so in the log.
    print(result.output)
    print(f"{len(provider.requests)} model calls, {len(session.history())} messages in the log")
