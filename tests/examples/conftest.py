"""Makes `examples` importable, and nothing else that lies beside it."""

import sys
from pathlib import Path
from types import ModuleType

_examples = ModuleType("examples")
_examples.__path__ = [str(Path(__file__).resolve().parents[2] / "examples")]
sys.modules.setdefault("examples", _examples)
