"""Model providers: what answers a request.

Read `refold.actors.calls.protocols` for what a provider is. Names load on first use: those that reach a host over HTTP
load an HTTP library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.providers.anthropic.provider import AnthropicProvider as AnthropicProvider
    from refold.providers.fallback import FallbackProvider as FallbackProvider
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

__all__ = [
    "AnswerReader",
    "AnthropicProvider",
    "FallbackProvider",
    "HttpLimits",
    "HttpOptions",
    "HttpProvider",
    "HttpTimeouts",
    "OpenAIProvider",
    "ReActProvider",
    "RecordedProvider",
    "RecordingProvider",
    "ScriptedProvider",
    "Secret",
    "WireEvent",
    "WireFormat",
    "WireRequest",
    "key_from",
]

_HOMES = {
    "AnswerReader": "refold.providers.http.wire",
    "AnthropicProvider": "refold.providers.anthropic.provider",
    "FallbackProvider": "refold.providers.fallback",
    "HttpLimits": "refold.providers.http.settings",
    "HttpOptions": "refold.providers.http.settings",
    "HttpProvider": "refold.providers.http.provider",
    "HttpTimeouts": "refold.providers.http.settings",
    "OpenAIProvider": "refold.providers.openai.provider",
    "ReActProvider": "refold.providers.react",
    "RecordedProvider": "refold.providers.recorded",
    "RecordingProvider": "refold.providers.recorded",
    "ScriptedProvider": "refold.providers.scripted",
    "Secret": "refold.providers.http.secrets",
    "WireEvent": "refold.providers.http.wire",
    "WireFormat": "refold.providers.http.wire",
    "WireRequest": "refold.providers.http.wire",
    "key_from": "refold.providers.http.secrets",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
