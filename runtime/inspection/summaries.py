"""Events, blocks, effects and requests in a few words each, for lists and transcripts that people read.

No machine reads them. The rule: nothing is made safe for a terminal here; `refold.commands.output` does that.
"""

import msgspec

from refold.events.core.content import (
    CRASHED_IMPORT_TEXT,
    NO_RESULT_TEXT,
    Block,
    DocumentBlock,
    ErrorKind,
    ImageBlock,
    JsonObject,
    ProviderBlock,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from refold.events.core.event import Event
from refold.events.core.pure_core import Effect, Wait, WaitUntil
from refold.events.kinds.breaker import (
    BreakerConfigured,
    CircuitClosed,
    CircuitOpened,
    FailureCounted,
    FailuresCleared,
    ProbeBegun,
    ProbeReleased,
    SharedStateSeen,
)
from refold.events.model.configuration import RunOptions
from refold.events.model.messages import Prepared, RequestReference, Usage
from refold.events.session import events as ev
from refold.events.session.react import AskPerson, CallModel, RunTool
from refold.events.session.state import told_reasons
from refold.inspection.times import time_words


def request_words(reference: RequestReference | None) -> list[str]:
    """Return what was done to a request before it was sent, a line each; none for a plain one.

    Of what is kept as a payload it only says that.
    """
    if reference is None:
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
    if prepared.refused is not None:
        parts = _counted(len(prepared.refused.parts), "part")
        lines.append(f"the model was asked without {parts} of the history that the provider had refused")
    if prepared.kept is not None:
        kept = sum(end - first for first, end in prepared.kept)
        lines.append(f"the model was shown {kept} of {_counted(messages, 'message')}")
    if prepared.prompt is not None:
        lines.append("the agent's function gave the system prompt")
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


def event_words(event: Event) -> str:
    """Return what `event` says, without its type and time."""
    return _run_words(event) or _call_words(event) or _breaker_words(event) or _other_words(event)


def _run_words(event: Event) -> str:
    match event:
        case ev.InputQueued(content=content):
            return content_words(content) + _input_words(event)
        case ev.TimerSet(due_at=due_at, content=content):
            when = f"{time_words(due_at)}{repeat_words(event.every)}"
            return f"{content_words(content)} (for {when}){_in_brackets(event.options)}"
        case ev.TimerFired(timer=timer, next_at=next_at, put_off=why):
            again = f"; it comes again at {time_words(next_at)}" if next_at is not None else ""
            again = f"; it waits until {time_words(next_at)}: {why}" if why and next_at is not None else again
            return f"the time of {timer} has come{again}"
        case ev.HandedOff(agent=agent, before=before, call=call):
            return f"handed from {before} to {agent} ({call})"
        case ev.TurnAllowed(run=run, turn=turn):
            return f"{run} may take turn {turn}"
        case ev.RunStarted(run=run) | ev.RunCompleted(run=run) | ev.RunCancelled(run=run):
            return run
        case ev.ModelRequested(run=run, turn=turn):
            return f"{run}, turn {turn}"
        case ev.RequestBuilt(turn=turn, request=request, summary=summary):
            what = "a summary is asked for" if summary else f"turn {turn} is asked"
            return "; ".join((f"{what}, with {_counted(request.messages, 'message')}", *request_words(request)))
        case ev.ModelResponded(content=content, trip=trip) if trip is not None:
            return f"{content_words(content)} ({trip})"
        case ev.ModelResponded(content=content, rejected=rejected) if rejected:
            return f"{content_words(content) or '(empty)'} (rejected: {rejected})"
        case ev.ModelResponded(content=content, stop_reason=stop_reason, request=request):
            words = content_words(content) or "(empty)"
            if stop_reason not in ("end_turn", "tool_use"):
                words = f"{words} ({': '.join([stop_reason, *told_reasons(event.stop_details or {})])})"
            done = "; ".join(request_words(request))
            return f"{words} ({done})" if done else words
        case ev.GuardrailTripped(trip=trip):
            return str(trip)
        case ev.ModelInterrupted(turn=turn, content=content):
            return f"the answer of turn {turn} was cut after: {content_words(content) or '(nothing)'}"
        case ev.ModelFailed(kind=kind, message=message, status=status):
            return f"the model call failed ({kind}{f', HTTP {status}' if status is not None else ''}): {message}"
        case ev.RetryScheduled(attempt=attempt, due_at=due_at, call=call):
            again = f"{call} is tried" if call is not None else "the model is asked"
            pause_s = max(due_at - event.at, 0) / 1e6
            return f"after {_counted(attempt, 'failed attempt')}, {again} again in {pause_s:g} s"
        case ev.RunFailed(run=run, kind=kind, message=message):
            return f"{run} ({kind}): {message}"
        case ev.RunResumed(run=run, asked=asked):
            return f"{run} was resumed{' on request' if asked else ''}"
        case ev.RunParked(run=run, reason=reason):
            return f"{run} was parked: {reason}"
        case ev.CancelRequested(run=run, reason=reason):
            return f"{run} is to end as cancelled{f': {reason}' if reason else ''}"
        case _:
            return ""


def _input_words(event: ev.InputQueued) -> str:
    if event.cancelled:
        return " (cancelled before it was accepted)"
    if event.joins is not None:
        return f" (joins {event.joins})"
    words = " (one turn at a time)" if event.stepwise else ""
    words += f" (the reminder of version {event.reminder})" if event.reminder else ""
    return words + _in_brackets(event.options)


def repeat_words(every: ev.Repeat | None) -> str:
    """Return how often an input is due again, with what stands before it: `, then every 3,600 s`; empty = it is not."""
    if every is None:
        return ""
    return f", then {every.cron} in {every.zone}" if every.cron else f", then every {every.interval_us / 1e6:,g} s"


def _in_brackets(options: RunOptions | None) -> str:
    return f" ({options_words(options)})" if options is not None else ""


def options_words(options: RunOptions) -> str:
    """Return what a run does otherwise than its agent: `model="small", max_turns=2`."""
    fields: dict[str, object] = msgspec.to_builtins(msgspec.structs.replace(options, output_instruction=None))
    return ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in fields.items())


def _call_words(event: Event) -> str:
    match event:
        case ev.ToolApprovalRequested(call=call, tool=tool, input=arguments, expires_at=expires_at):
            until = f" (until {time_words(expires_at)})" if expires_at is not None else ""
            return f"{call} {call_words(tool, arguments)}{until}"
        case ev.ToolApprovalDecided(call=call, allowed=allowed, reason=reason, always=always, input=arguments):
            words = f"{call} {'allowed' if allowed else 'denied'}{' always' if always else ''}"
            words += f" with {msgspec.json.encode(arguments).decode()}" if arguments is not None else ""
            return f"{words}: {reason}" if reason else words
        case ev.QuestionAsked(call=call, number=number, question=question, expires_at=expires_at):
            until = f" (until {time_words(expires_at)})" if expires_at is not None else ""
            return f"{call}.{number} {'waits for its result' if event.gives_result else 'asks'}: {question}{until}"
        case ev.QuestionAnswered(call=call, number=number, answer=answer, error=error):
            said = msgspec.json.encode(answer).decode() if error is None else f"(no answer) {error}"
            return f"{call}.{number}: {said}"
        case ev.ToolCallStarted(call=call, attempt=attempt):
            return call if attempt == 1 else f"{call}, attempt {attempt}"
        case ev.ToolAttemptFailed(call=call, attempt=attempt, kind=kind, content=content):
            return f"attempt {attempt} at {call} failed ({kind}): {content_words(content)}"
        case ev.ToolCallCompleted(call=call, content=content, ends_run=ends_run):
            return f"{call}: {content_words(content)}{' (ends the run)' if ends_run else ''}"
        case ev.ToolCallFailed(call=call, kind=kind, content=content):
            return f"{call} ({kind_words(kind, content)}): {content_words(content)}"
        case ev.ToolCallWaiting(call=call, waits=waits):
            return f"{call} {'waits for a person' if waits else 'goes on'}"
        case ev.ToolResultLate(call=call, kind=kind, content=content):
            return f"{call} had ended when this came{f' ({kind})' if kind else ''}: {content_words(content)}"
        case _:
            return ""


def _breaker_words(event: Event) -> str:
    match event:
        case BreakerConfigured(threshold=threshold, recovery_us=recovery_us, probe_us=probe_us):
            times = f"for {recovery_us / 1e6:g} s; a probe has {probe_us / 1e6:g} s"
            return f"opens after {_failures_words(threshold)}, {times}"
        case FailureCounted(failures=failures, error=error):
            return f"{_failures_words(failures)}: {error}"
        case FailuresCleared():
            return "a call succeeded"
        case CircuitOpened(failures=failures, error=error):
            return f"after {_failures_words(failures)}: {error}"
        case ProbeBegun(probe=probe):
            return f"probe {probe} is let through"
        case ProbeReleased(probe=probe):
            return f"probe {probe} was cancelled, or died with its process"
        case CircuitClosed():
            return "a probe succeeded"
        case SharedStateSeen(phase=phase, failures=failures, error=error):
            said = f": {error}" if failures else ""
            return f"seen {phase.replace('_', ' ')} with {_failures_words(failures)}{said}"
        case _:
            return ""


def _failures_words(count: int) -> str:
    return f"{count} failure{'s' if count != 1 else ''} in a row"


def _other_words(event: Event) -> str:
    match event:
        case ev.SessionOpened(session=session, agent=agent, graph_entities=entities):
            return f"{session} with {agent}" + (
                f", whose graph has {entities} entities" if entities is not None else ""
            )
        case ev.SessionDescribed(user=user, metadata=metadata):
            said = [f"user {user}"] if user is not None else ["no user"]
            return ", ".join([*said, *(f"{key}={value}" for key, value in metadata.items())])
        case ev.AgentConfigured(configuration=configuration):
            tools = ", ".join(policy.name for policy in configuration.tools) or "no tools"
            return f"{configuration.agent}: {configuration.model}; {tools}"
        case ev.HistoryImported(messages=messages):
            return f"{len(messages)} message{'s' if len(messages) != 1 else ''}"
        case ev.HistoryCleared():
            return "the conversation begins anew"
        case ev.HistoryRewound(to=to, messages=kept):
            return f"the conversation is taken back to version {to}, to its first {_counted(kept, 'message')}"
        case ev.SessionForked():
            return _fork_words(event)
        case ev.InputSetAside(messages=messages, reason=reason):
            places = ", ".join(str(aside.place + 1) for aside in messages)
            return f"message {places} of the history is left out of later requests: {reason or 'so it was asked'}"
        case ev.ContentTakenBack(aside=aside, reason=reason):
            return f"what version {aside} set aside is in later requests again: {reason or 'so it was asked'}"
        case ev.ContextPrepared(replaced=replaced):
            return f"a summary stands for the oldest {replaced} messages"
        case _:
            fields = {name: getattr(event, name) for name in event.__struct_fields__ if name != "at"}
            return msgspec.json.encode(fields).decode()


def _fork_words(event: ev.SessionForked) -> str:
    words = f"{event.session} goes on from version {event.version} of {event.origin}"
    if event.keeps_run:
        words += ", its run when it is resumed"
    given = [f"{result.tool_use_id}: {content_words(result.content)}" for result in event.results]
    return "; ".join([words, *given]) + _in_brackets(event.options)


def call_words(tool: str, arguments: JsonObject) -> str:
    """Return a tool call as code: `weather(city="Lisbon", days=1)`; a name that could be mistaken stands in quotes."""
    shown = (
        f"{name if name.isidentifier() else msgspec.json.encode(name).decode()}={msgspec.json.encode(value).decode()}"
        for name, value in arguments.items()
    )
    return f"{tool}({', '.join(shown)})"


def content_words(content: tuple[Block, ...]) -> str:
    """Return what stands in `content`, block by block, without reasoning."""
    return " ".join(words for block in content if type(block) is not ThinkingBlock and (words := block_words(block)))


def block_words(block: Block) -> str:
    """Return a block's text, or what kind of thing it is."""
    match block:
        case TextBlock(text=text):
            return text
        case ThinkingBlock(thinking=thinking):
            return thinking
        case ImageBlock(url=str() as url) | DocumentBlock(url=str() as url):
            return f"[{block.media_type or 'image'} at {url}]"
        case ImageBlock(media_type=media_type, data=data) | DocumentBlock(media_type=media_type, data=data):
            return f"[{media_type} of {len(data):,} bytes]"
        case ProviderBlock(provider=provider, data=data):
            return f"[{data.get('type', 'block')} of {provider}]"
        case StoredBlock(hash=name, bytes=size, holds=holds):
            return block.shown or f"[{holds} of {size:,} bytes, payload {name[:12]}]"
        case ToolUseBlock(name=tool, input=arguments, malformed_input=None):
            return call_words(tool, arguments)
        case ToolUseBlock(name=tool, malformed_input=malformed):
            return f"{tool}({malformed})"
        case _:
            return content_words(block.content)


def kind_words(kind: ErrorKind, content: tuple[Block, ...]) -> str:
    """Return the kind of an error result in words: a call without a result in an imported history crashed nowhere."""
    text = content[0].text if len(content) == 1 and isinstance(content[0], TextBlock) else ""
    return "no result in the imported history" if text in (CRASHED_IMPORT_TEXT, NO_RESULT_TEXT) else kind


def effect_words(effect: Effect) -> str:
    match effect:
        case CallModel(turn=turn):
            return f"model call of turn {turn}"
        case RunTool(name=name, input=arguments):
            return call_words(name, arguments)
        case AskPerson(tool=tool, input=arguments):
            return f"a decision about {call_words(tool, arguments)}"
        case Wait() if type(effect) is Wait:
            return "a person who resumes the run"
        case WaitUntil(due_at=due_at):
            return f"wait until {time_words(due_at)}"
        case _:
            return effect.key


def usage_words(usage: Usage) -> str:
    """Return counted tokens: `120 tokens in, 30 out`."""
    cached = f" ({usage.cache_read_tokens:,} cached)" if usage.cache_read_tokens else ""
    return f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"
