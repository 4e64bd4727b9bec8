"""A first agent; it needs no key and no network. Run it from the folder above this one.

    refold run examples.weather_agent:agent "What will the weather be in Lisbon and Porto?"

Its model plays a script: put a provider of a real model there, and nothing else changes.
"""

from refold import Agent, AgentConfig, ModelRequest, ScriptedProvider, ToolContext, ToolResultBlock, ToolUse, tool, use

FORECASTS = {"Lisbon": "sunny, 24 degrees", "Porto": "rain, 17 degrees", "Faro": "sunny, 27 degrees"}


@tool(tier="observe", effect="pure")
async def weather(city: str, context: ToolContext[None]) -> str:
    """Forecast for a city.

    Args:
        city: its name in English.
    """
    context.progress(f"looking up {city}")
    return f"{city}: {FORECASTS.get(city, 'no forecast')}"


def next_step(request: ModelRequest) -> list[ToolUse] | str:
    """Ask for the forecast of each city in the last question; then say what came of it."""
    last = request.messages[-1]
    results = [block.text for block in last.content if isinstance(block, ToolResultBlock)]
    if results:
        return "; ".join(results) + "."
    cities = [city for city in FORECASTS if city in last.text]
    return [use("weather", {"city": city}) for city in cities] or "Ask me about a city, please."


agent = Agent(
    name="forecaster",
    config=AgentConfig(model="scripted", system_prompt="You are brief."),
    provider=ScriptedProvider([next_step] * 100),
    tools=[weather],
)
