"""One-line faults of the session's core, and the rules that must find each of them.

A fault replaces one text, which stands exactly once in its module, by another. It is data, so that whoever adds a rule
or a decision adds the fault that would go unseen without it.
"""

import msgspec

from refold.scenarios.session_rules import Rule


class Fault(msgspec.Struct, frozen=True):
    """A fault to plant."""

    name: str
    module: str
    """File in `events/`, without `.py`."""
    original: str
    planted: str
    found_by: tuple[Rule, ...]
    """Rules that the first violation breaks, all of them."""


FAULTS = (
    Fault(
        "a cancelled run ends while a call is open",
        "session_decisions",
        "    if turn is not None:\n        call = turn.calls[turn.first_open]",
        "    if turn is not None and turn.open > 1:\n        call = turn.calls[turn.first_open]",
        ("INV1",),
    ),
    Fault(
        "a run completes twice",
        "session_decisions",
        "return [RunCompleted(run=run.id)]",
        "return [RunCompleted(run=run.id), RunCompleted(run=run.id)]",
        ("TOTAL",),
    ),
    Fault(
        "a run stays open after its end",
        "session_fold",
        "        state.keys[run.key].terminal = state.version\n    state.run = None",
        '        state.keys[run.key].terminal = state.version\n    state.run, run.phase = run, "waiting"',
        ("INV7",),
    ),
    Fault(
        "an input stays queued when its run begins",
        "session_fold",
        "queued = state.queue.pop(0)",
        "queued = state.queue[0]",
        ("INV3",),
    ),
    Fault(
        "the newest input begins first",
        "session_fold",
        "queued = state.queue.pop(0)",
        "queued = state.queue.pop()",
        ("INV3",),
    ),
    Fault(
        "a late result enters the history",
        "session_fold",
        '    """Evidence about a call that was answered: nothing in the state depends on it."""',
        '    state.messages.append(Message("user", event.content))',
        ("INV0",),
    ),
    Fault(
        "an answer that came too late enters the history",
        "session_fold",
        "state.usage = state.usage + event.usage  # Its run is over",
        'state.messages.append(Message("assistant", event.content))  # Its run is over',
        ("INV0", "INV1"),
    ),
    Fault(
        "the results of a turn enter the history twice",
        "session_fold",
        "state.messages.append(results_message(turn))",
        "state.messages.extend([results_message(turn)] * 2)",
        ("INV1",),
    ),
    Fault(
        "a call is answered a second time",
        "session_admission",
        "    if call is None or call.result is not None:\n        if call is None and",
        "    if call is None:\n        if call is None and",
        ("TOTAL",),
    ),
    Fault(
        "two calls of an answer share an id",
        "session_admission",
        'f"call_{version}_{index}"',
        'f"call_{version}_0"',
        ("INV1",),
    ),
    Fault(
        "an acting call starts beside another",
        "session_decisions",
        'return call.policy.tier == "observe" and turn',
        "return turn",
        ("TIERS",),
    ),
    Fault(
        "a call of a cut answer runs",
        "session_state",
        "if turn.truncated or call.verdict.verdict in",
        "if call.verdict.verdict in",
        ("APPROVAL",),
    ),
    Fault(
        "a call that policy denies runs",
        "session_state",
        'in ("deny", "invalid_arguments", "not_found")',
        'in ("invalid_arguments", "not_found")',
        ("APPROVAL",),
    ),
    Fault(
        "a call that asks for approval runs without one",
        "session_state",
        'or call.policy.tier == "confirm")',
        "or False)",
        ("APPROVAL",),
    ),
    Fault(
        "a call that a person denied runs",
        "session_decisions",
        "case ToolApprovalDecided(allowed=False):",
        "case ToolApprovalDecided(allowed=None):",
        ("APPROVAL",),
    ),
    Fault(
        "a call is decided about twice",
        "session_admission",
        'or call.approval != "requested":',
        "or not call.approval:",
        ("INV1",),
    ),
    Fault(
        "a `once` call runs again after a crash",
        "session_fold",
        'call.policy.effect == "once" or call.name not in event.tools',
        "call.name not in event.tools",
        ("ONCE",),
    ),
    Fault(
        "a call runs again where its tool is missing",
        "session_fold",
        'call.policy.effect == "once" or call.name not in event.tools',
        'call.policy.effect == "once"',
        ("ONCE",),
    ),
    Fault(
        "an approved `once` call runs again and nobody is asked",
        "session_decisions",
        "return ToolApprovalRequested(run=run.id, call=call.id, tool=call.name, input=call.input, reason=CRASHED_TEXT)",
        "return ToolCallStarted(run=run.id, call=call.id)",
        ("INV1", "TIERS"),
    ),
    Fault(
        "the cancel of a queued input is forgotten",
        "session_fold",
        "            queued.cancelled = True",
        "            queued.cancelled = False",
        ("INV2",),
    ),
    Fault(
        "an input whose token was cancelled runs",
        "session_fold",
        "if queued.cancelled:",
        "if not queued:",
        ("INV2",),
    ),
    Fault(
        "the cancel of a queued input ends the run under way",
        "session_fold",
        "if run is not None and run.id == event.run:\n        run.phase",
        "if run is not None:\n        run.phase",
        ("INV2", "OUTCOME"),
    ),
    Fault(
        "a cancelled call is said to have crashed",
        "session_decisions",
        '"cancelled", CANCELLED_TEXT',
        '"crashed", CRASHED_TEXT',
        ("KINDS",),
    ),
    Fault(
        "one turn too many",
        "session_decisions",
        "if run.turns >= configuration.max_turns:",
        "if run.turns > configuration.max_turns:",
        ("TURNS",),
    ),
    Fault(
        "a run that is out of time goes on",
        "session_fold",
        "elif event.timer == deadline_key(run):",
        "elif event.timer == retry_key(run):",
        ("OUTCOME",),
    ),
    Fault(
        "a paused turn ends the run",
        "session_fold",
        'elif event.stop_reason == "pause_turn":',
        'elif event.stop_reason == "refusal":',
        ("OUTCOME",),
    ),
    Fault(
        "a key is forgotten when its run has ended",
        "session_admission",
        "if record is None:",
        "if record is None or record.terminal:",
        ("KEYS",),
    ),
    Fault(
        "a key means whatever comes with it",
        "session_admission",
        "if record.command != word or (content",
        "if record.command != word or not (content",
        ("KEYS",),
    ),
    Fault(
        "pending forgets a started call",
        "session_decisions",
        "for call in running_calls(state.turn))",
        "for call in running_calls(state.turn)[:1])",
        ("INV7",),
    ),
    Fault(
        "a parked run has work in flight",
        "session_decisions",
        "if run is None or run.parked:\n        return []\n    effects",
        "if run is None:\n        return []\n    effects",
        ("INV7",),
    ),
    Fault(
        "a parked run goes on when something arrives",
        "session_decisions",
        "    if run.parked:\n        return []\n    if run.phase",
        "    if run.phase",
        ("PARKED",),
    ),
    Fault(
        "fruitless resumes are not counted",
        "session_fold",
        "run.resumes += 1",
        "run.resumes += 0",
        ("PARKED",),
    ),
    Fault(
        "calls of an imported history stay open",
        "session_decisions",
        "case HistoryImported():\n            return _close_lost(state)",
        "case HistoryImported():\n            return []",
        ("APPROVAL",),
    ),
    Fault(
        "a started call is forgotten, so that its result is refused",
        "session_fold",
        "turn.calls[turn.index[event.call]].started = True",
        "turn.calls[turn.index[event.call]].started = False",
        ("TOTAL",),
    ),
    Fault(
        "the next input is left in the queue when a run has completed",
        "session_decisions",
        "| ToolResultLate() | ModelRequested():",
        "| ToolResultLate() | ModelRequested() | RunCompleted():",
        ("LIVE",),
    ),
    Fault(
        "the result of another session's call is recorded",
        "session_admission",
        "if call is None and not _was_called(state, command.call):",
        "if call is not None and not _was_called(state, command.call):",
        ("INV4",),
    ),
    Fault(
        "a refused decision changes the state",
        "session_admission",
        "    call = find_call(state, command.call)\n    if call is None or call.result is not None or",
        "    call, state.at = find_call(state, command.call), 0\n    if call is None or call.result is not None or",
        ("TOTAL",),
    ),
    Fault(
        "admitting a cancel drops the queue, which no event says",
        "session_admission",
        "    run = state.run\n    wanted = command.run",
        "    run, state.queue = state.run, []\n    wanted = command.run",
        ("INV6",),
    ),
)
"""Found by the everyday scopes, each within seconds."""
