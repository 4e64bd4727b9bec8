"""The tool calls of an answer, put together from the fragments that a server streams.

OpenAI gives a call's id and name in its first fragment and its place among the calls (`index`) in each. Compatible
servers do this in many ways, each seen in the wild:

- no `index` at all (Gemini: openai/openai-python#2806; Ollama: ollama/ollama#7881), or 0 for every call, each with its
  own id and name (older vLLM and SGLang: InternLM/lmdeploy#3412);
- the id again in every fragment, an empty one, or another one in each fragment that only the first has a name beside
  (poolsideai/pool#9);
- all calls so far in every chunk, whole (a cumulative update);
- arguments as an object instead of text; the arguments before the name (vercel/ai#5885);
- a fragment that only has a signature (open-webui/computer#224).

The call of a custom tool, whose argument is a text, has it as `{"input": …}`, and `type` in its `provider_data`.

A fragment belongs to the call at its `index`, or else with its id, or else to the one under way. It begins another call
where it has a name and another id, or a name behind arguments that are whole or were given for another name. Whether
the texts of arguments are pieces or repetitions is decided at the end: they are pieces if they join to a JSON object,
or if they came without id and name.
"""

import json
import re
from collections.abc import Sequence

import msgspec

from refold.events.core.cleaning import Unrecordable, clean_json, clean_text
from refold.events.core.content import Json, JsonObject, is_json_object
from refold.events.core.errors import ProviderError
from refold.events.model.messages import ToolInputDelta, ToolUse
from refold.providers.http.wire import ToolNames, decoded, object_field, text_field

NAME_CHARACTERS_MAX = 512
"""No more of a name is put together; no tool has a longer one."""

_KNOWN_FIELDS = ("index", "id", "type", "function", "custom")
_KNOWN_FUNCTION_FIELDS = ("name", "arguments", "input")


class _Fragment(msgspec.Struct, frozen=True):
    """What a server gives of a call at once."""

    index: int | None
    id: str | None
    name: str
    arguments: str
    custom: bool
    """Whether the tool is one of the provider's custom ones, whose argument is a text."""
    further: JsonObject
    """What else it holds, such as a signature, which has to go back with the call."""

    @classmethod
    def of(cls, value: JsonObject) -> "_Fragment":
        function = object_field(value, "function") or object_field(value, "custom")
        index = value.get("index")
        further = _without(value, _KNOWN_FIELDS)
        if inner := _without(function, _KNOWN_FUNCTION_FIELDS):
            further["function"] = inner
        return cls(
            index=index if type(index) is int else None,
            id=text_field(value, "id") or None,
            name=text_field(function, "name"),
            arguments=_as_text(function.get("arguments", function.get("input"))),
            custom=not object_field(value, "function") and bool(object_field(value, "custom")),
            further=further,
        )

    @property
    def is_empty(self) -> bool:
        return not (self.id or self.name or self.arguments or self.further)


class _Call:
    """One call, as far as it has come."""

    def __init__(self) -> None:
        self.place = -1
        """Among the calls that have shown something; -1 = it has not."""
        self.id: str | None = None
        self.name = ""
        self.has_index = False
        self.custom = False
        self.further: JsonObject = {}
        self._texts: list[str] = []
        self._length = 0
        self._grows = True
        """Whether each text of the arguments so far begins with the one before."""
        self._object = _ObjectEnd()

    @property
    def has_arguments(self) -> bool:
        return bool(self._texts)

    @property
    def is_whole(self) -> bool:
        """Whether the arguments so far are one JSON object, to which nothing can be added."""
        return self._object.reached

    def add(self, fragment: _Fragment) -> tuple[bool, str]:
        """Take a fragment; return whether the name has changed, and what is new of the arguments."""
        self.id = self.id or fragment.id
        self.custom = self.custom or fragment.custom
        self.further.update(fragment.further)
        before = self.name
        if fragment.name and not (before and self._texts) and len(before) < NAME_CHARACTERS_MAX:
            repeated = fragment.name.startswith(before)
            self.name = (fragment.name if repeated else before + fragment.name)[:NAME_CHARACTERS_MAX]
        update = fragment.id is not None or bool(fragment.name)
        return self.name != before, self._add_arguments(fragment.arguments, update=update)

    def _add_arguments(self, text: str, *, update: bool) -> str:
        """Take more of the arguments; only what says whose they are may be an update, which repeats what has come."""
        if not text or (update and self.is_whole and self.repeats(text)):
            return ""
        new = text
        if self._texts:
            self._grows = self._grows and update and text.startswith(self._texts[-1])
            new = text[len(self._texts[-1]) :] if self._grows else text
        self._texts.append(text)
        self._length += len(text)
        self._object.read(text)
        return new

    def repeats(self, text: str) -> bool:
        return len(text) == self._length and "".join(self._texts) == text

    def arguments(self) -> str:
        joined = "".join(self._texts)
        if len(self._texts) > 1 and self._grows and not _is_object(joined):
            joined = self._texts[-1]
        return clean_text(joined)

    def use(self, provider: str, names: ToolNames) -> ToolUse:
        further = {**self.further, "type": "custom"} if self.custom else self.further
        return ToolUse(
            name=names.own(clean_text(self.name)),
            input={"input": self.arguments()} if self.custom else self.arguments(),
            id=clean_text(self.id) if self.id else None,
            provider_data={provider: kept(further)} if further else None,
        )


class CallAssembly:
    """Puts the calls of one answer together; takes time and room in proportion to what comes."""

    def __init__(self, provider: str, names: ToolNames) -> None:
        self._provider = provider
        self._names = names
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._row: list[_Call] = []
        """The calls of the last chunk that had some, in its order."""
        self._shown: list[_Call] = []
        """Those with a name or arguments, in the order of their places."""

    def add(self, values: Sequence[Json]) -> list[ToolInputDelta]:
        """Take the `tool_calls` of one chunk, and return what is new in them."""
        fragments = [_Fragment.of(value) for value in values if is_json_object(value)]
        deltas: list[ToolInputDelta] = []
        row: list[_Call] = []
        for place, fragment in enumerate(fragments):
            call = self._call_of(fragment, place if len(fragments) > 1 else None)
            if call is None:
                if fragment.is_empty:
                    continue
                call = self._begin()
            self._note(call, fragment)
            row.append(call)
            deltas.extend(self._added(call, fragment))
        self._row = row or self._row
        return deltas

    def add_whole(self, values: Sequence[Json]) -> list[ToolInputDelta]:
        """Take the `tool_calls` of a whole message, of which each is a call of its own."""
        deltas: list[ToolInputDelta] = []
        for value in values:
            if is_json_object(value) and not (fragment := _Fragment.of(value)).is_empty:
                deltas.extend(self._added(self._begin(), fragment))
        return deltas

    def uses(self) -> list[ToolUse]:
        """Return the calls, in the order of their places."""
        return [call.use(self._provider, self._names) for call in self._shown]

    @property
    def have_begun(self) -> bool:
        return bool(self._calls)

    @property
    def are_whole(self) -> bool:
        """Whether no call can be in want of more arguments."""
        return all(not call.has_arguments or _is_object(call.arguments()) for call in self._calls)

    def _begin(self) -> _Call:
        call = _Call()
        self._calls.append(call)
        return call

    def _note(self, call: _Call, fragment: _Fragment) -> None:
        if fragment.index is not None:
            self._by_index[fragment.index] = call
            call.has_index = True
        if fragment.id is not None:
            self._by_id[fragment.id] = call

    def _added(self, call: _Call, fragment: _Fragment) -> list[ToolInputDelta]:
        renamed, text = call.add(fragment)
        if not renamed and not text:
            return []
        if call.place < 0:
            call.place = len(self._shown)
            self._shown.append(call)
        identifier = clean_text(call.id) if call.id else None
        return [ToolInputDelta(call.place, self._names.own(clean_text(call.name)), clean_text(text), identifier)]

    def _call_of(self, fragment: _Fragment, place: int | None) -> _Call | None:
        """Return the call that a fragment, at a place among others of its chunk, belongs to; None = it begins one."""
        if fragment.index is not None:
            call = self._by_index.get(fragment.index)
            return self._at_new_index(fragment) if call is None else _unless_another(call, fragment)
        if fragment.id is not None and fragment.id in self._by_id:
            return _unless_another(self._by_id[fragment.id], fragment)
        if place is None:
            under_way = self._calls[-1] if self._calls else None
        else:
            under_way = self._row[place] if place < len(self._row) else None
        if under_way is None:
            return None
        if fragment.id is not None and (fragment.name or not under_way.name or under_way.is_whole):
            return None
        if fragment.name and under_way.name and fragment.name != under_way.name:
            return None
        return _unless_another(under_way, fragment)

    def _at_new_index(self, fragment: _Fragment) -> _Call | None:
        """Return the call that goes on, or is repeated, at an index that none was at."""
        if fragment.id is not None:
            known = self._by_id.get(fragment.id)
            repeated = known is not None and known.is_whole and known.repeats(fragment.arguments)
            if known is not None and (not fragment.name or (repeated and fragment.name == known.name)):
                return known
            return None
        last = self._calls[-1] if self._calls else None
        if last is None or last.has_index or fragment.name or (last.is_whole and fragment.arguments):
            return None
        return last


def _unless_another(call: _Call, fragment: _Fragment) -> _Call | None:
    """Return the call that a fragment was found to belong to, or None where it begins another one."""
    if not fragment.name:
        return call
    if fragment.id is not None and call.id is not None and fragment.id != call.id:
        return call if _cannot_begin(fragment, behind=call) else None
    if not call.has_arguments or not call.name:
        return call
    if fragment.name != call.name:
        return None
    goes_on = not call.is_whole or not fragment.arguments.strip() or call.repeats(fragment.arguments)
    return call if goes_on else None


def _cannot_begin(fragment: _Fragment, *, behind: _Call) -> bool:
    """Return whether the arguments of a fragment can only go on with those of an unfinished call of that name.

    vLLM gives the name again, and another id, with the last arguments of a call (vllm-project/vllm#31438).
    """
    unfinished = behind.has_arguments and not behind.is_whole and behind.name == fragment.name
    text = fragment.arguments.lstrip()
    return unfinished and bool(text) and not text.startswith("{")


class _ObjectEnd:
    """Finds the end of a JSON object in text that comes in pieces, reading each once."""

    _MARKS = re.compile(r'\\.|["{}]', re.DOTALL)

    def __init__(self) -> None:
        self.reached = False
        self._depth = 0
        self._quoted = False
        self._escape = ""

    def read(self, text: str) -> None:
        if self.reached:
            return
        text = self._escape + text
        backslashes = len(text) - len(text.rstrip("\\"))
        self._escape = "\\" if backslashes % 2 else ""
        for mark in self._MARKS.findall(text[: len(text) - len(self._escape)]):
            if mark == '"':
                self._quoted = not self._quoted
            elif mark == "{" and not self._quoted:
                self._depth += 1
            elif mark == "}" and not self._quoted:
                self._depth -= 1
                if self._depth <= 0:
                    self.reached = True
                    return


def kept(value: JsonObject) -> JsonObject:
    """Return what has to go back to the provider, fit for the log."""
    try:
        cleaned = clean_json(value)
    except Unrecordable as error:
        raise ProviderError(f"the answer holds what cannot be kept: {error}", kind="malformed") from None
    assert is_json_object(cleaned)
    return cleaned


def _without(value: JsonObject, known: Sequence[str]) -> JsonObject:
    return {key: item for key, item in value.items() if key not in known and item is not None}


def _as_text(arguments: Json) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise ProviderError("the arguments of a call are nested too deeply", kind="malformed") from None


def _is_object(text: str) -> bool:
    try:
        return is_json_object(decoded(text))
    except ValueError:
        return False
