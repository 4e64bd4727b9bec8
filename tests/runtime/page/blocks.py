"""What a page that opens from disk holds."""

import re
from typing import Any

import msgspec


def blocks(page: str) -> dict[str, Any]:
    """Return the data of a page, by the names of their blocks."""
    found = re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', page, re.DOTALL)
    return {name: msgspec.json.decode(body) for name, body in found}
