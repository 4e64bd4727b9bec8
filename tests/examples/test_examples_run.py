"""The examples, as their reader runs them: once, or twice on the same log, which is sound afterwards."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.conftest import ROOT, assert_sound, refold, run_example

BREAKER = """
alice is told: I cannot tell now.
calls that reached the service: 2
after a restart: Still not. calls: 2
a minute later: Sunny. calls: 3
"""

GRAPH = """
The shop reaches mail through payments and the ledger, in 28 ms.
4 entities when the session began
{'calls': 1, 'notifies': 1, 'writes': 1} mean weight 9.33 cycle: False
without payments: They are not connected.
"""


@pytest.mark.parametrize(
    ("example", "times", "printed"),
    [
        ("order_book.py", 2, "{1: Order(side='sell', price=101, quantity=2)}"),
        ("device_twin.py", 2, "the lamp shines at 70"),
        ("breaker.py", 1, BREAKER),
        ("graph.py", 2, GRAPH),
    ],
)
def test_an_example_prints_this_each_time(example: str, times: int, printed: str, tmp_path: Path) -> None:
    expected = printed.strip().splitlines()
    for _ in range(times):
        said = run_example(example, tmp_path)
        assert (said[-1:] if example == "device_twin.py" else said) == expected
    if example == "device_twin.py":
        assert_sound(tmp_path / "lamps.db", "--kind", "lamp=examples.device_twin:Lamp")
    if example == "breaker.py":
        log = tmp_path / "breaker.db"
        assert_sound(log)
        shown = " ".join(refold("show", log, "breaker/forecast").stdout.split())
        assert "after 2 failures in a row: ConnectionError: no route to the forecast service" in shown
        assert "after 3 failures in a row" in " ".join(refold("show", log, "breaker/first-model").stdout.split())


@pytest.mark.skipif(find_spec("tokenizers") is None, reason="its tokenizer is a package of its own")
def test_a_tokenizer_of_ones_own_counts(tmp_path: Path) -> None:
    assert run_example("own_tokenizer.py", tmp_path) == [
        "the story is longer than the window: True",
        "of 3 messages the model was shown 1",
    ]


def test_the_order_book_is_short() -> None:
    assert len((ROOT / "examples" / "order_book.py").read_text().splitlines()) < 100
