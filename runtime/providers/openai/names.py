"""Tool names and call ids as the Chat Completions API accepts them: `^[a-zA-Z0-9_-]{1,64}$` and at most 40 characters.

Names of tools come back in answers, so what was changed on the way out is remembered and changed back.
Sources: `openai.types.shared_params.FunctionDefinition.name`; the API's own error "Invalid
'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40".
"""

import hashlib
import re
from collections.abc import Iterable, Mapping

NAME_CHARACTERS_MAX = 64
CALL_ID_CHARACTERS_MAX = 40

CHANGED_NAMES_MAX = 1000
"""How many changed names are remembered; a request uses those of its own tools at once."""

_DIGITS = 12
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


def fitted(names: Iterable[str], characters_max: int) -> dict[str, str]:
    """Return the form on the wire of each name: itself if it is accepted, else one made from it and its hash.

    The same names always give the same forms, and different names different ones.

    Args:
        characters_max: how long a form may be, more than 20.
    """
    wanted = dict.fromkeys(names)
    forms = {name: name for name in wanted if name and len(name) <= characters_max and not _FOREIGN.search(name)}
    taken = set(forms)
    for name in wanted:
        if name in forms:
            continue
        attempt = 0
        while (form := _made_from(name, attempt, characters_max)) in taken:
            attempt += 1
        forms[name] = form
        taken.add(form)
    return forms


def _made_from(name: str, attempt: int, characters_max: int) -> str:
    digest = hashlib.sha256(f"{attempt}:{name}".encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    return f"{_FOREIGN.sub('_', name)[: characters_max - _DIGITS - 1]}_{digest}"


class ToolNames:
    """Remembers which tools were offered under another name, so that answers can be read."""

    def __init__(self) -> None:
        self._own: dict[str, str] = {}

    def remember(self, forms: Mapping[str, str]) -> None:
        """Take note of the forms of the tools that a request offers, by their own names."""
        for name, form in forms.items():
            self._own.pop(form, None)
            if form != name:
                self._own[form] = name
        while len(self._own) > CHANGED_NAMES_MAX:
            del self._own[next(iter(self._own))]

    def own(self, form: str) -> str:
        return self._own.get(form, form)
