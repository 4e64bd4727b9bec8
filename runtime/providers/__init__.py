"""Model providers: what answers a request.

Read `refold.actors.calls.protocols` for what a provider is. Names load on first use: those that reach a host over HTTP
load an HTTP library.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.providers.anthropic.provider import AnthropicProvider as AnthropicProvider
    from refold.providers.fallback import FallbackProvider as FallbackProvider
    from refold.providers.function import FunctionProvider as FunctionProvider
    from refold.providers.function import ProviderFunction as ProviderFunction
    from refold.providers.histories.anthropic_form import history_from_anthropic as history_from_anthropic
    from refold.providers.histories.anthropic_form import history_to_anthropic as history_to_anthropic
    from refold.providers.histories.openai_form import history_from_openai as history_from_openai
    from refold.providers.histories.openai_form import history_to_openai as history_to_openai
    from refold.providers.histories.wire_history import WireHistory as WireHistory
    from refold.providers.http.provider import HttpProvider as HttpProvider
    from refold.providers.http.secrets import Secret as Secret
    from refold.providers.http.secrets import key_from as key_from
    from refold.providers.http.settings import HttpLimits as HttpLimits
    from refold.providers.http.settings import HttpOptions as HttpOptions
    from refold.providers.http.settings import HttpTimeouts as HttpTimeouts
    from refold.providers.http.wire import AnswerReader as AnswerReader
    from refold.providers.http.wire import WireEvent as WireEvent
    from refold.providers.http.wire import WireFormat as WireFormat
    from refold.providers.http.wire import WireRequest as WireRequest
    from refold.providers.openai.provider import OpenAIProvider as OpenAIProvider
    from refold.providers.react import ReActProvider as ReActProvider
    from refold.providers.recorded import RecordedProvider as RecordedProvider
    from refold.providers.recorded import RecordingProvider as RecordingProvider
    from refold.providers.scripted import ScriptedProvider as ScriptedProvider
else:
    from refold._lazy import lazy

    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.providers.anthropic.provider": "AnthropicProvider",
            "refold.providers.fallback": "FallbackProvider",
            "refold.providers.function": "FunctionProvider ProviderFunction",
            "refold.providers.histories.anthropic_form": "history_from_anthropic history_to_anthropic",
            "refold.providers.histories.openai_form": "history_from_openai history_to_openai",
            "refold.providers.histories.wire_history": "WireHistory",
            "refold.providers.http.provider": "HttpProvider",
            "refold.providers.http.secrets": "key_from Secret",
            "refold.providers.http.settings": "HttpLimits HttpOptions HttpTimeouts",
            "refold.providers.http.wire": "AnswerReader WireEvent WireFormat WireRequest",
            "refold.providers.openai.provider": "OpenAIProvider",
            "refold.providers.react": "ReActProvider",
            "refold.providers.recorded": "RecordedProvider RecordingProvider",
            "refold.providers.scripted": "ScriptedProvider",
        },
    )
