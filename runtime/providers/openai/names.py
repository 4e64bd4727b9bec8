"""Tool names and call ids as the Chat Completions API and its servers accept them.

Names are `[a-zA-Z0-9_-]{1,64}` (`openai.types.shared_params.FunctionDefinition.name`). They come back in answers, so
what was changed on the way out is remembered and changed back. Ids of calls have exactly nine letters and digits: that
is what Mistral's API and its tokenizer take ("Tool call id was … but must be a-z, A-Z, 0-9, with a length of 9"), and
all other servers take them as well.
"""

import hashlib
import re
import string
from collections.abc import Callable, Iterable, Mapping

NAME_CHARACTERS_MAX = 64
CALL_ID_CHARACTERS = 9

CHANGED_NAMES_MAX = 1000
"""How many changed names are remembered; a request uses those of its own tools at once."""

_DIGITS = 12
_NAME = re.compile(f"[a-zA-Z0-9_-]{{1,{NAME_CHARACTERS_MAX}}}")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
_CALL_ID = re.compile(f"[a-zA-Z0-9]{{{CALL_ID_CHARACTERS}}}")
_CALL_ID_LETTERS = string.ascii_letters + string.digits


def name_forms(names: Iterable[str]) -> dict[str, str]:
    """Return the form on the wire of each tool's name: itself if it is accepted, else one made from it and its hash.

    The same names always give the same forms, and different names different ones.
    """
    return _fitted(names, _NAME, _made_name)


def call_id_forms(ids: Iterable[str]) -> dict[str, str]:
    """Return the form on the wire of each call's id, by the same rule; an id has the same one in every request."""
    return _fitted(ids, _CALL_ID, _made_call_id)


def _fitted(given: Iterable[str], accepted: re.Pattern[str], made: Callable[[str, int], str]) -> dict[str, str]:
    wanted = dict.fromkeys(given)
    forms = {name: name for name in wanted if accepted.fullmatch(name)}
    taken = set(forms)
    for name in wanted:
        if name in forms:
            continue
        attempt = 0
        while (form := made(name, attempt)) in taken:
            attempt += 1
        forms[name] = form
        taken.add(form)
    return forms


def _digest(name: str, attempt: int) -> bytes:
    return hashlib.sha256(f"{attempt}:{name}".encode(errors="surrogatepass")).digest()


def _made_name(name: str, attempt: int) -> str:
    kept = NAME_CHARACTERS_MAX - _DIGITS - 1
    return f"{_FOREIGN.sub('_', name)[:kept]}_{_digest(name, attempt).hex()[:_DIGITS]}"


def _made_call_id(name: str, attempt: int) -> str:
    number = int.from_bytes(_digest(name, attempt))
    letters: list[str] = []
    for _ in range(CALL_ID_CHARACTERS):
        number, place = divmod(number, len(_CALL_ID_LETTERS))
        letters.append(_CALL_ID_LETTERS[place])
    return "".join(letters)


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
