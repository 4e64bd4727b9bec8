"""What one session's events amount to, read without the code that decided them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Set

import msgspec

from refold.events import SESSION_CODEC, SessionState, fold
from refold.events.core.content import TextBlock, text_of, tool_uses
from refold.events.core.records import StoredEvent
from refold.events.session import events as ev
from refold.events.session.state import run_of_input
from tests.conformance.killed_process import work_plan
from tests.conformance.killed_process.order_desk import TOOLS, receipt

EFFECTS = {tool.name: tool.spec.effect for tool in TOOLS}


def tag_of(stored: StoredEvent) -> str:
    """Return the tag of a stored event."""
    return str(msgspec.json.decode(stored.data)["type"])


class SessionFacts:
    """Everything about one session that a promise refers to; calls are named by their idempotency keys.

    Args:
        stream: name of its stream.
        stored: all events of it.
    """

    def __init__(self, stream: str, stored: list[StoredEvent]) -> None:
        self.stream = stream
        self.session = stream.removeprefix("session/")
        self.inputs: dict[str, list[int]] = {}
        """Versions of InputQueued by key; more than one each would be a fault."""
        self.begun: set[str] = set()
        """Runs whose turn has come."""
        self.runs: list[tuple[str, str]] = []
        """Runs that have ended, and how, in that order."""
        self.answers: dict[str, str] = {}
        """The text of each run's last answer."""
        self.cancelled: set[str] = set()
        """Runs whose cancellation was asked for."""
        self.decisions: set[tuple[str | None, str, bool]] = set()
        self.started: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        """How many results each call has."""
        self.receipts: dict[str, str] = {}
        """What the bodies of calls returned, as recorded."""
        self.resumed = 0
        self._stored = stored
        self._calls: dict[str, tuple[str, str, str]] = {}
        """The run, the tool and the parcel of each call."""
        events = SESSION_CODEC.decode_all(stored)
        for version, event in enumerate(events, 1):
            self._read(version, event)
        self.state: SessionState = fold(events)

    def _read(self, version: int, event: ev.SessionEvent) -> None:
        match event:
            case ev.InputQueued(key=key, cancelled=cancelled):
                self.inputs.setdefault(key or "", []).append(version)
                if cancelled:
                    self.cancelled.add(run_of_input(version))
            case ev.RunStarted(run=run):
                self.begun.add(run)
            case ev.ModelResponded(run=run, content=content):
                self.answers[run] = "".join(block.text for block in content if isinstance(block, TextBlock))
                for use in tool_uses(content):
                    self._calls[self._key(use.id)] = (run, use.name, str(use.input.get("parcel")))
            case ev.ToolApprovalDecided(key=key, call=call, allowed=allowed):
                self.decisions.add((key, call, allowed))
                self.allowed[self._key(call)] += allowed
            case ev.ToolCallStarted(call=call):
                self.started[self._key(call)] += 1
            case ev.ToolCallCompleted(call=call, content=content):
                self.answered[self._key(call)] += 1
                self.receipts[self._key(call)] = text_of(content)
            case ev.ToolCallFailed(call=call):
                self.answered[self._key(call)] += 1
            case ev.CancelRequested(run=run):
                self.cancelled.add(run)
            case ev.RunResumed():
                self.resumed += 1
            case ev.RunCompleted(run=run) | ev.RunFailed(run=run) | ev.RunCancelled(run=run):
                self.runs.append((run, type(event).__name__.removeprefix("Run")))
            case _:
                return

    def _key(self, call: str) -> str:
        return f"{self.session}/{call}"

    def at(self, version: int) -> StoredEvent | None:
        """Return the event at a version, if there is one."""
        return self._stored[version - 1] if version <= len(self._stored) else None

    def outcomes(self, run: str) -> list[str]:
        """Return how a run ended: at most one word, unless something is wrong."""
        return [outcome for ended, outcome in self.runs if ended == run]

    def run_of_call(self, key: str) -> str:
        """Return the run that a call belongs to; empty = the log knows no such call."""
        return self._calls[key][0] if key in self._calls else ""

    def faults(self, began: Mapping[str, int], ended: Set[str]) -> Iterator[str]:
        """Yield what is wrong about calls.

        Args:
            began: how often each body began, in all lives.
            ended: the calls whose body came to its end at least once.
        """
        for key, (_, tool, parcel) in self._calls.items():
            if self.answered[key] > 1:
                yield f"{key} ({tool}) has {self.answered[key]} results"
            # A start allows one body in each life; the start of a `once` call, one for ever.
            starts = self.started[key] if EFFECTS[tool] == "once" else self.started[key] + self.resumed
            if began[key] > starts:
                yield f"the body of {key} ({tool}, {EFFECTS[tool]}) ran {began[key]} times, which {starts} starts allow"
            if EFFECTS[tool] == "once" and self.started[key] > max(1, self.allowed[key]):
                yield f"{key} ({tool}) was started {self.started[key]} times with {self.allowed[key]} approvals"
            if key in self.receipts and self.receipts[key] != receipt(tool, parcel, key):
                yield f"{key} ({tool}) has a result that is not its own: {self.receipts[key]!r}"
            if key in self.receipts and key not in ended:
                yield f"{key} ({tool}) has the result of a body that never came to its end"

    def faults_of_inputs(self, counter: work_plan.Counter) -> Iterator[str]:
        """Yield what is wrong about the inputs so far: they are to be the first ones of the plan, once each."""
        planned = [errand.key for errand in counter.errands]
        if list(self.inputs) != planned[: len(self.inputs)] or any(map(_repeated, self.inputs.values())):
            yield f"{self.stream}: the inputs {self.inputs} are not the first ones of {planned}, once each"

    def undone(self, counter: work_plan.Counter) -> Iterator[str]:
        """Yield what of a plan is not done, or done otherwise."""
        planned = [errand.key for errand in counter.errands]
        if list(self.inputs) != planned:
            yield f"{self.stream}: the inputs {list(self.inputs)} are not {planned}"
            return
        runs = [str(run_of_input(self.inputs[key][0])) for key in planned]
        if [run for run, _ in self.runs] != runs:
            yield f"{self.stream}: the runs {self.runs} did not end one after another in the order of {runs}"
            return
        if self.state.run is not None or self.state.queue:
            yield f"{self.stream}: something is still to be done"
        for errand, (run, outcome) in zip(counter.errands, self.runs, strict=True):
            wanted = {"Cancelled"} if run in self.cancelled else {"Completed"}
            if outcome not in wanted:
                yield f"{self.stream}: {errand.key} ({errand.call_off}) ended as {outcome}, and not as {wanted}"
            if errand.call_off == "before it is sent" and run not in self.cancelled:
                yield f"{self.stream}: {errand.key} ran, though it was cancelled before it was sent"
            if outcome == "Completed" and not self.answers[run].startswith(f"{errand.key} is done: "):
                yield f"{self.stream}: the answer to {errand.key} is {self.answers[run]!r}"


def _repeated(versions: list[int]) -> bool:
    return len(versions) > 1
