"""Model providers: what answers a request.

Read `refold.actors.protocols` for what a provider is. Names load on first use: those that reach a host over HTTP load
an HTTP library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.providers.anthropic import AnthropicProvider as AnthropicProvider
    from refold.providers.fallback import FallbackProvider as FallbackProvider
    from refold.providers.http_provider import HttpProvider as HttpProvider
    from refold.providers.http_settings import HttpLimits as HttpLimits
    from refold.providers.http_settings import HttpOptions as HttpOptions
    from refold.providers.http_settings import HttpTimeouts as HttpTimeouts
    from refold.providers.openai import OpenAIProvider as OpenAIProvider
    from refold.providers.react import ReActProvider as ReActProvider
    from refold.providers.recorded import RecordedProvider as RecordedProvider
    from refold.providers.recorded import RecordingProvider as RecordingProvider
    from refold.providers.scripted import ScriptedProvider as ScriptedProvider
    from refold.providers.secrets import Secret as Secret
    from refold.providers.secrets import key_from as key_from
    from refold.providers.wire_format import AnswerReader as AnswerReader
    from refold.providers.wire_format import WireEvent as WireEvent
    from refold.providers.wire_format import WireFormat as WireFormat
    from refold.providers.wire_format import WireRequest as WireRequest

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
    "AnswerReader": "refold.providers.wire_format",
    "AnthropicProvider": "refold.providers.anthropic",
    "FallbackProvider": "refold.providers.fallback",
    "HttpLimits": "refold.providers.http_settings",
    "HttpOptions": "refold.providers.http_settings",
    "HttpProvider": "refold.providers.http_provider",
    "HttpTimeouts": "refold.providers.http_settings",
    "OpenAIProvider": "refold.providers.openai",
    "ReActProvider": "refold.providers.react",
    "RecordedProvider": "refold.providers.recorded",
    "RecordingProvider": "refold.providers.recorded",
    "ScriptedProvider": "refold.providers.scripted",
    "Secret": "refold.providers.secrets",
    "WireEvent": "refold.providers.wire_format",
    "WireFormat": "refold.providers.wire_format",
    "WireRequest": "refold.providers.wire_format",
    "key_from": "refold.providers.secrets",
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
