"""What was done to a request, in words for people who read a log."""

from refold.events.model import RequestReference
from refold.events.prepared import Prepared


def request_words(reference: RequestReference | None) -> list[str]:
    """Return what was done to a request before it was sent, a line each; none for a plain one.

    Of what is kept as a payload it only says that.
    """
    if not isinstance(reference, RequestReference):
        return []
    lines: list[str] = []
    if reference.recalled:
        lines.append(f"{_counted(len(reference.recalled), 'remembered item')} entered the request")
    if reference.prepared_payload is not None:
        lines.append(f"what else was done to the request is payload {reference.prepared_payload[:12]}")
    if reference.prepared is not None:
        lines += _prepared_words(reference.prepared, reference.messages)
    return lines


def _prepared_words(prepared: Prepared, messages: int) -> list[str]:
    lines: list[str] = []
    if prepared.kept is not None:
        kept = sum(end - first for first, end in prepared.kept)
        lines.append(f"the model was shown {kept} of {_counted(messages, 'message')}")
    if any(addition.source == "working_memory" for addition in prepared.added):
        lines.append("the working memory stood behind the system prompt")
    if (changes := prepared.rewritten) is not None:
        fields = [name.replace("_", " ") for name in changes.__struct_fields__ if getattr(changes, name) is not None]
        lines.append(f"middleware changed the request: {', '.join(fields)}")
    if prepared.answer is not None:
        lines.append("middleware changed the answer")
    return [*lines, *prepared.notes]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
