"""Keeps secrets out of the program's own log: nothing that a redaction in use here knows is in a line of Refold's.

A filter stands at every logger that Refold uses, since a logger's filter does not count for those below it; so all
handlers, a program's own too, get clean records. The same filter stands at the loggers of the HTTP libraries.
"""

import logging
import threading
import traceback
import weakref
from typing import Final

from refold.events.secrets.redaction import Redaction

LOGGERS: Final = (
    "refold",
    "refold.actors",
    "refold.approval",
    "refold.bell",
    "refold.commands",
    "refold.inbox",
    "refold.memory",
    "refold.metrics",
    "refold.model",
    "refold.objects",
    "refold.provider",
    "refold.resilience",
    "refold.runtime",
    "refold.scenarios",
    "refold.session",
    "refold.snapshots",
    "refold.stores",
    "refold.subagent",
    "refold.tool",
    "refold.tracing",
    "httpx",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore.proxy",
    "httpcore.socks",
)
"""All that Refold logs to; and what HTTP libraries say of a call, which at DEBUG includes headers of the response."""


_in_use: tuple[weakref.ref[Redaction], ...] = ()
_lock = threading.Lock()


def in_use(redaction: Redaction) -> Redaction:
    global _in_use
    if redaction:
        with _lock:
            _in_use = (*(known for known in _in_use if known() is not None), weakref.ref(redaction))
    return redaction


def without_known_secrets(text: str) -> str:
    for known in _in_use:
        redaction = known()
        if redaction is not None:
            text = redaction.text(text)
    return text


class WithoutSecrets(logging.Filter):
    """Takes secrets out of a record's message, its traceback and its stack."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            said = record.getMessage()
        except Exception:  # noqa: BLE001 - the handlers report it, as they do for every record
            return True
        if (clean := without_known_secrets(said)) != said:
            record.msg, record.args = clean, ()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            told = "".join(traceback.format_exception(error))
            if (clean := without_known_secrets(told)) != told:
                record.exc_text, record.exc_info = clean.rstrip("\n"), None
        if record.stack_info:
            record.stack_info = without_known_secrets(record.stack_info)
        return True


_FILTER = WithoutSecrets()

for _name in LOGGERS:
    logging.getLogger(_name).addFilter(_FILTER)
