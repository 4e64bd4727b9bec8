"""Keeps secrets out of what the HTTP libraries log: at level DEBUG that includes the headers of each response.

A filter stands at their loggers and acts only on what is logged inside one of our own calls.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from refold.providers.secrets import Redactor

LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy", "httpcore.socks")
"""All that have something to say about a call. A logger's filter does not count for those below it."""

_redactor: ContextVar[Redactor | None] = ContextVar("refold_redactor", default=None)


@contextmanager
def clean_logs(redactor: Redactor) -> Generator[None, None, None]:
    """Take the secrets that `redactor` knows out of what the HTTP libraries log inside the block."""
    before = _redactor.set(redactor)
    try:
        yield
    finally:
        _redactor.reset(before)


class _Clean(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        redactor = _redactor.get()
        if redactor is not None:
            text = record.getMessage()
            clean = redactor.text(text)
            if clean != text:
                record.msg, record.args = clean, ()
        return True


_CLEAN = _Clean()

for _name in LOGGERS:
    logging.getLogger(_name).addFilter(_CLEAN)
