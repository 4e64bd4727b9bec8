"""The words of a text, as a search without embeddings compares them.

Two texts share a word where they share it in any case and any Unicode form (NFKC, then case-folded: `Straße` and
`STRASSE`). A word is a run of letters, digits and `_`. Chinese and Japanese are written without spaces: of their runs,
each pair of neighbouring characters counts as a word, as search engines do it, and so does a single
character that stands alone.
"""

import re
import unicodedata

_WITHOUT_SPACES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_WITHOUT_SPACES}]+|[^\W{_WITHOUT_SPACES}]+")
_HAS_WITHOUT_SPACES = re.compile(rf"[{_WITHOUT_SPACES}]")
_PLAIN_WORD = re.compile(r"\w+")


def words_of(text: str) -> frozenset[str]:
    """Return the different words of a text."""
    if text.isascii():
        return frozenset(_PLAIN_WORD.findall(text.lower()))
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    if not _HAS_WITHOUT_SPACES.search(folded):
        return frozenset(_PLAIN_WORD.findall(folded))
    return frozenset(word for run in _WORD.findall(folded) for word in _pairs(run))


def _pairs(run: str) -> list[str]:
    if len(run) == 1 or not _HAS_WITHOUT_SPACES.match(run):
        return [run]
    return [run[place : place + 2] for place in range(len(run) - 1)]
