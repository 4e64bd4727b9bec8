"""One-line faults of everything around the core that drawn scenarios of the simulator must find.

Those of `SHELL_FAULTS` that break a promise to somebody outside stand here by their names; others are planted here
only. What such a fault breaks is seen from outside, in the log, in what is asked and in what is told, so that no rule
needs to know the fault. Read `tests.planted_faults.rehearsing` for how they are planted and found.
"""

from tests.planted_faults.disk_and_wire_faults import DISK_FAULTS, WIRE_FAULTS
from tests.planted_faults.scenario_fault import ANTHROPIC, MEMORY, OPENAI, ScenarioFault
from tests.planted_faults.shell_faults import SHELL_FAULTS
from tests.planted_faults.sweep import World

NOT_WITHIN = "no one of 110 drawn scenarios did"
OUT_OF_SIGHT = "it costs time or a fold, and nobody outside sees it"
ASKED_AGAIN = "those outside ask again, and any message has it mended"
REFUSED_BY_THE_CORE = "the core refuses a second result of a call by itself"

BY_NAME = {fault.name: fault for fault in SHELL_FAULTS}


def of_the_shell(name: str, *, not_found: str = "", world: World = MEMORY) -> ScenarioFault:
    """Return a fault that named tests find too."""
    fault = BY_NAME[name]
    return ScenarioFault(
        name=name, file=fault.file, original=fault.original, planted=fault.planted, not_found=not_found, world=world
    )


JOURNAL = (
    of_the_shell("an append is acknowledged before its transaction"),
    of_the_shell("all that share a transaction are told the place of the first"),
    of_the_shell("an effect begins before the batch that asks for it is durable"),
    of_the_shell("an event is applied twice"),
    of_the_shell("the state is not folded again after an append that failed"),
    of_the_shell("what a failed append wrote all the same is not published"),
    of_the_shell("a state that could not be read again is taken for the log's"),
    of_the_shell("the time of a stream goes back with the clock"),
    ScenarioFault(
        name="an append that failed is told as done",
        file="actors/journal.py",
        original="            self._fail(group, self._failure(error, outcome_unknown=True))\n        else:\n",
        planted="            for entry in group:\n"
        "                entry.settle(\n"
        "                    [Appended(stream=b.stream, position=1, version=1, chain=b'') for b in entry.batches]\n"
        "                )\n"
        "        else:\n",
    ),
    ScenarioFault(
        name="of those that share a transaction only the first is written",
        file="actors/journal.py",
        original="        batches = [batch for entry in group for batch in entry.batches]\n",
        planted="        batches = [batch for entry in group[:1] for batch in entry.batches]\n",
    ),
    ScenarioFault(
        name="of those that share a transaction only the first's payloads are written",
        not_found="payloads seldom share a transaction in a scenario",
        file="actors/journal.py",
        original="for entry in group for name, data in entry.payloads.items()",
        planted="for entry in group[:1] for name, data in entry.payloads.items()",
    ),
    ScenarioFault(
        name="payloads are left out",
        file="actors/journal.py",
        original="await self.store.append(batches, payloads)",
        planted="await self.store.append(batches, {})",
    ),
    ScenarioFault(
        name="appends that arrive during a transaction are forgotten by the writer",
        not_found=NOT_WITHIN,
        file="actors/journal.py",
        original="            while self._waiting:\n                group",
        planted="            if self._waiting:\n                group",
    ),
    ScenarioFault(
        name="the effects in flight are not recorded",
        file="actors/folded_stream.py",
        original="pending=tuple([wanted.key for wanted in self._core.pending(self.state)]),",
        planted="pending=(),",
    ),
    ScenarioFault(
        name="a batch is stamped with no time",
        file="actors/folded_stream.py",
        original="            at=self.time,\n",
        planted="            at=0,\n",
    ),
    ScenarioFault(
        name="events are published again after a failed append",
        file="actors/folded_stream.py",
        original="            self._published_to = recorded[-1].version\n            self._port.published(recorded)\n",
        planted="            self._port.published(recorded)\n",
    ),
    ScenarioFault(
        name="the last event of a batch is not published",
        file="actors/folded_stream.py",
        original="            self._port.published(recorded)\n",
        planted="            self._port.published(recorded[:-1])\n",
    ),
    ScenarioFault(
        name="a consequence is left out of the log",
        file="actors/folded_stream.py",
        original="for event in planned.events]),",
        planted="for event in planned.events[:2]]),",
    ),
)

EFFECTS = (
    of_the_shell("an effect that is no longer wanted is not cancelled"),
    of_the_shell(
        "the next effect begins beside those that were cancelled, and callers are told before these have ended"
    ),
    of_the_shell("the result that raced a cancel is lost"),
    of_the_shell(
        "the result of an abandoned call is dropped",
        not_found="a body that ignores its cancellation goes on for an hour, and the simulation is over before",
    ),
    of_the_shell("the evidence of half an answer is dropped"),
    of_the_shell(
        "cancelled effects are waited for without end",
        not_found="a body that hangs ends after an hour, within the patience of a scenario",
    ),
    of_the_shell("a result that the log refused is not offered again"),
    of_the_shell("a result that is in the log after all is recorded twice", not_found=REFUSED_BY_THE_CORE),
    of_the_shell("an actor whose log could not be read at its start waits for a message", not_found=ASKED_AGAIN),
    of_the_shell("recovery is left out"),
    of_the_shell("a timer does not look at the wall clock", not_found=OUT_OF_SIGHT),
    of_the_shell(
        "cancelled effects are forgotten with the instance that cancelled them",
        not_found="nothing in a scenario makes an actor fail",
    ),
    of_the_shell("an actor that works is let go", not_found=OUT_OF_SIGHT),
    of_the_shell("an actor that is let go takes its timers with it"),
    of_the_shell("a session that was let go is taken for one that a crash interrupted", not_found=OUT_OF_SIGHT),
    ScenarioFault(
        name="work begins only at the next message",
        file="actors/event_sourced.py",
        original="        effects.ended(key, recorded=recorded)\n        self._reconcile()\n",
        planted="        effects.ended(key, recorded=recorded)\n",
    ),
    ScenarioFault(
        name="what a failed append wrote all the same does not go on",
        not_found=ASKED_AGAIN,
        file="actors/event_sourced.py",
        original="                self._reconcile()  # The append may",
        planted="                pass  # The append may",
    ),
    ScenarioFault(
        name="a state that cannot be read again is not looked after",
        not_found=ASKED_AGAIN,
        file="actors/event_sourced.py",
        original="                self._take_up_later(0)\n            else:\n",
        planted="                pass\n            else:\n",
    ),
    ScenarioFault(
        name="an effect that ended is begun again",
        file="actors/event_sourced.py",
        original="            effects.running[key] = effect\n            if isinstance(effect, WaitUntil):",
        planted="            effects.running.pop(key, None)\n            if isinstance(effect, WaitUntil):",
    ),
    ScenarioFault(
        name="a recovery that the log refuses is not tried again",
        not_found=ASKED_AGAIN,
        file="actors/event_sourced.py",
        original="            recovery = self._port.recovery(wanted)\n",
        planted="            self._taken_up = True\n            recovery = self._port.recovery(wanted)\n",
    ),
    ScenarioFault(
        name="a result is recorded although its effect is in doubt",
        not_found=REFUSED_BY_THE_CORE,
        file="actors/folded_stream.py",
        original="            if in_doubt and effect is not None and await self._has_result(effect):\n",
        planted="            if effect is not None and effect.causation < 0:\n",
    ),
    ScenarioFault(
        name="a timer is never set",
        file="actors/event_sourced.py",
        original="                self._set_timer(effect)\n            elif",
        planted="                pass\n            elif",
    ),
    ScenarioFault(
        name="a result whose first offer failed is thrown away",
        file="actors/event_sourced.py",
        original="self._offer_later(msgspec.structs.replace(ended, attempt=ended.attempt + 1))\n",
        planted="self._offer_later(EffectEnded(key=key, attempt=ended.attempt + 1))\n",
    ),
)

KERNEL = (
    of_the_shell("a new message overtakes those that wait", not_found=NOT_WITHIN),
    of_the_shell("a message does not end an actor's rest", not_found=NOT_WITHIN),
    of_the_shell("a refusal under tell restarts the actor", not_found=OUT_OF_SIGHT),
    ScenarioFault(
        name="a message to an idle actor that nobody waits for lies there",
        file="actors/kernel/mailbox.py",
        original="        if not self._running:\n            self._running = True\n",
        planted="        if not self._running and reply is not None:\n            self._running = True\n",
    ),
    ScenarioFault(
        name="two messages of an actor are handled at once",
        file="actors/kernel/mailbox.py",
        original="        if not self._running:\n            self._running = True\n",
        planted="        if True:\n            self._running = True\n",
    ),
    ScenarioFault(
        name="a message that arrives while an actor is let go is lost",
        not_found=NOT_WITHIN,
        file="actors/kernel/mailbox.py",
        original="                heir.put(message, reply)\n",
        planted="                pass\n",
    ),
    ScenarioFault(
        name="who asked is not told of a refusal",
        file="actors/kernel/cell.py",
        original="            reply.settle(error=self._for_asker(error))\n        elif isinstance(error, RefoldError):",
        planted="            pass\n        elif isinstance(error, RefoldError):",
    ),
    ScenarioFault(
        name="an actor stops handling after a failure",
        not_found=NOT_WITHIN,
        file="actors/kernel/cell.py",
        original="            return\n        failed, self.actor",
        planted="            self._queue = None\n            return\n        failed, self.actor",
    ),
    ScenarioFault(
        name="after some messages the rest is forgotten",
        file="actors/kernel/cell.py",
        original="            while self._queue:\n                handled += 1\n",
        planted="            while self._queue and handled < 3:\n                handled += 1\n",
    ),
    ScenarioFault(
        name="whoever closes does not wait for the last message",
        not_found=NOT_WITHIN,
        file="actors/kernel/cell.py",
        original="                    await self._wait(result, interruptible=False)\n"
        "            except BaseException as error:\n"
        "                if self._passes(error):\n                    raise\n"
        '                self.system.supervisor.report(self.address, error, "stop")',
        planted="                    result.close()\n            except BaseException as error:\n"
        "                if self._passes(error):\n                    raise\n"
        '                self.system.supervisor.report(self.address, error, "stop")',
    ),
)

SESSION = (
    of_the_shell("a cancellation that the log refuses is lost", not_found=NOT_WITHIN),
    of_the_shell("a state that is not durable is shown", not_found=NOT_WITHIN),
    of_the_shell("a caller is told before the cancelled effects of its run have ended"),
    of_the_shell("a caller who is cancelled leaves the run alone"),
    of_the_shell("a session that cannot be read keeps the others from resuming", not_found=NOT_WITHIN),
    ScenarioFault(
        name="sessions share a history",
        file="actors/agent/session.py",
        original="        messages = self.state.messages\n",
        planted='        messages = self.actor.system.__dict__.setdefault("messages", self.state.messages)\n',
    ),
    ScenarioFault(
        name="a tool is not told of a cancellation",
        file="actors/agent/session.py",
        original="        self._order(effect, CancelEffect(self._stream, effect.key, cause))\n",
        planted="        if not isinstance(effect, RunTool):\n"
        "            self._order(effect, CancelEffect(self._stream, effect.key, cause))\n",
    ),
    ScenarioFault(
        name="a model is not told of a cancellation",
        file="actors/agent/session.py",
        original="        self._order(effect, CancelEffect(self._stream, effect.key, cause))\n",
        planted="        if not isinstance(effect, CallModel):\n"
        "            self._order(effect, CancelEffect(self._stream, effect.key, cause))\n",
    ),
    ScenarioFault(
        name="a request lacks the newest message",
        file="actors/agent/session.py",
        original="            length=len(messages),\n",
        planted="            length=max(1, len(messages) - 1),\n",
    ),
    ScenarioFault(
        name="a run that a crash left open waits for somebody",
        file="actors/agent/session.py",
        original="        if not setting.auto_resume and (interrupted",
        planted="        if (interrupted",
    ),
    ScenarioFault(
        name="the key of an input is forgotten",
        not_found=NOT_WITHIN,
        file="runtime/sessions/run_handle.py",
        original="        content=blocks,\n        key=checked_key(key),\n        cancelled=cancelled,",
        planted="        content=blocks,\n        cancelled=cancelled,",
    ),
    ScenarioFault(
        name="a run that ended is not told after a restart",
        file="runtime/sessions/run_handle.py",
        original="            if record is not None and record.terminal:\n",
        planted="            if record is not None and record.terminal < 0:\n",
    ),
    ScenarioFault(
        name="open runs are not looked for",
        file="runtime/lifecycle.py",
        original="            suspects.append(head.stream)\n        else:\n            _wake(system, head.stream)\n",
        planted="            suspects.append(head.stream)\n",
    ),
    ScenarioFault(
        name="callers are told of ends that have not settled",
        not_found=NOT_WITHIN,
        file="runtime/sessions/event_bus.py",
        original="        if last is not None:\n            ending[last.run] = last.version  #",
        planted="        if last is not None and state.run is None:\n            ending[last.run] = last.version  #",
    ),
    ScenarioFault(
        name="a caller is told that a run failed is completed",
        file="runtime/sessions/outcome.py",
        original='        case "failed":\n',
        planted='        case "failing":\n',
    ),
)

TOOLS = (
    of_the_shell("a tool call that is begun twice under one key runs twice", not_found=NOT_WITHIN),
    of_the_shell("what a body returned after it was given up is dropped", not_found=NOT_WITHIN),
    of_the_shell("a cancelled approval does not say that it has ended", not_found=NOT_WITHIN),
    ScenarioFault(
        name="a person who denies a call allows it",
        file="actors/agent/approval.py",
        original="return DecideApproval(call=request.call, allowed=False, reason=recorded_reason(reason))",
        planted="return DecideApproval(call=request.call, allowed=True)",
    ),
    ScenarioFault(
        name="the handler that was asked about a cancelled call still decides",
        not_found=NOT_WITHIN,
        file="actors/agent/approval.py",
        original="                waiting, task = self._waiting.pop((asker, key), (None, None))\n",
        planted="                waiting, task = self._waiting.get((asker, key), (None, None))[0], None\n",
    ),
    ScenarioFault(
        name="a tool's limit of calls at once is not kept",
        file="actors/agent/tool.py",
        original="        await slot.acquire()\n",
        planted="        await asyncio.sleep(0)\n",
    ),
    ScenarioFault(
        name="the slot of a call is not given back",
        file="actors/agent/tool.py",
        original="            running.stop_timers()\n            running.free_slot()\n            if",
        planted="            running.stop_timers()\n            if",
    ),
    ScenarioFault(
        name="a tool's result is told as cancelled",
        file="actors/agent/tool.py",
        original="            if running.token.cancelled:  # Before it began.\n",
        planted="            if not running.token.cancelled:\n",
    ),
    ScenarioFault(
        name="the end of a cancelled call is not told",
        file="actors/agent/tool.py",
        original="            self._tell_end(running, EffectEnded(key=running.message.key))\n",
        planted="            pass\n",
    ),
    ScenarioFault(
        name="a tool's cancellation does not reach its body",
        file="actors/agent/tool.py",
        original="            self._end_body(running)\n\n    def _end_body",
        planted="            pass\n\n    def _end_body",
    ),
    ScenarioFault(
        name="a failure of a tool is recorded for nobody",
        file="actors/agent/tool.py",
        original="            if not isinstance(error, ToolError):\n",
        planted="            if isinstance(error, ToolError):\n                return self._tell_cancelled(running)\n"
        "            if not isinstance(error, ToolError):\n",
    ),
)

MODEL_CALLS = (
    of_the_shell("a model call that is begun twice under one key is made twice", not_found=NOT_WITHIN),
    of_the_shell("half an answer is lost when its stream fails"),
    of_the_shell("a request holds messages of the history before it was cleared", not_found=NOT_WITHIN),
    ScenarioFault(
        name="calls of two sessions under one key are one",
        file="actors/agent/model.py",
        original="                place = (message.reply_to.address, message.key)\n",
        planted='                place = ("", message.key)\n',
    ),
    ScenarioFault(
        name="a failure is recorded as final",
        file="actors/agent/model.py",
        original="            retryable=provider.retryable if provider is not None else False,\n",
        planted="            retryable=False,\n",
    ),
    ScenarioFault(
        name="a failure is recorded as of another kind",
        file="actors/agent/model.py",
        original='            kind=provider.kind if provider is not None else "agent_loop",\n',
        planted='            kind="server" if provider is not None else "agent_loop",\n',
    ),
    ScenarioFault(
        name="what an answer cost is forgotten",
        file="actors/agent/model.py",
        original="            usage=response.usage,\n            request=",
        planted="            request=",
    ),
    ScenarioFault(
        name="the last part of an answer is dropped",
        file="actors/agent/model.py",
        original="            content=answer.content,\n",
        planted="            content=answer.content[: max(1, len(answer.content) - 1)],\n",
    ),
    ScenarioFault(
        name="a model that was cancelled goes on",
        file="actors/agent/model.py",
        original="                    if running.begun and running.task is not None:\n"
        "                        running.task.cancel()\n",
        planted="                    pass\n",
    ),
    ScenarioFault(
        name="the end of a model call is not told",
        file="actors/agent/model.py",
        original="        tell_end(message.reply_to, ended)\n",
        planted="        pass\n",
    ),
    ScenarioFault(
        name="a log that cannot be read for a while fails the run",
        not_found=NOT_WITHIN,
        file="actors/effects.py",
        original="            await clock.sleep(retry_pause_s(failures))\n",
        planted="            raise\n",
    ),
    ScenarioFault(
        name="verdicts are not recorded",
        file="actors/agent/model.py",
        original="            verdicts=answer.verdicts,\n",
        planted="",
    ),
)

STORES = (
    ScenarioFault(
        name="the version that an append expects is not checked",
        not_found=NOT_WITHIN,
        file="stores/memory.py",
        original="            if version != batch.expected_version:\n",
        planted="            if version > batch.expected_version + 1_000:\n",
    ),
    ScenarioFault(
        name="the list of streams keeps effects that have ended",
        file="stores/memory.py",
        original="chain=chain, pending=batch.pending)\n            appended",
        planted="chain=chain, pending=head.pending if head else batch.pending)\n            appended",
    ),
    ScenarioFault(
        name="streams with work in flight are left out of their list",
        file="stores/memory.py",
        original="(head.pending or not with_pending)",
        planted="not with_pending",
    ),
    ScenarioFault(
        name="two events have one position",
        file="stores/memory.py",
        original="            position = len(self._log) + len(events) + 1\n",
        planted="            position = len(self._log) + 1\n",
    ),
    ScenarioFault(
        name="payloads are not kept",
        file="stores/memory.py",
        original=".append(event)\n        self._payloads.update(payloads)\n",
        planted=".append(event)\n",
    ),
    ScenarioFault(
        name="a batch is not chained to the one before",
        file="stores/memory.py",
        original="            chain = next_chain(head.chain if head else first_chain(batch.stream), batch)\n",
        planted="            chain = next_chain(first_chain(batch.stream), batch)\n",
    ),
    ScenarioFault(
        name="the last event of a batch is not kept",
        file="stores/memory.py",
        original="        for event in events:\n            self._streams",
        planted="        for event in events[:4]:\n            self._streams",
    ),
)

PROVIDERS = (
    ScenarioFault(
        name="a stream that ends inside an answer is taken for whole by AnthropicProvider",
        not_found="no one of 16 scenarios of that world did",
        file="runtime/providers/anthropic/stream.py",
        original='        if not self._finished:\n            raise malformed("the stream ended inside the answer")\n',
        planted="",
        world=ANTHROPIC,
    ),
    ScenarioFault(
        name="a stream that ends inside an answer is taken for whole by OpenAIProvider",
        file="runtime/providers/openai/stream.py",
        original="            if not self._done:\n"
        '                raise malformed("the stream ended before the answer did")\n',
        planted="            return assembly.answer()\n",
        world=OPENAI,
    ),
    ScenarioFault(
        name="the last block of an answer is dropped",
        file="runtime/providers/anthropic/stream.py",
        original="blocks = sorted(self._blocks, key=",
        planted="blocks = sorted(self._blocks[: max(1, len(self._blocks) - 1)], key=",
        world=ANTHROPIC,
    ),
    ScenarioFault(
        name="characters that are cut in two are lost",
        file="runtime/providers/http/events.py",
        original="            return self._characters.decode(data, final)\n",
        planted='            return data.decode(errors="ignore")\n',
        world=OPENAI,
    ),
    ScenarioFault(
        name="the end of a piece is taken for the end of a line",
        file="runtime/providers/http/events.py",
        original="        self._take(unfinished)\n",
        planted="        self._take(unfinished)\n        self._end_line()\n",
        world=ANTHROPIC,
    ),
    ScenarioFault(
        name="what a streamed answer cost is not kept",
        file="runtime/providers/openai/answer.py",
        original="        self._usage = usage\n        return [UsageDelta(usage)]\n",
        planted="        return [UsageDelta(usage)]\n",
        world=OPENAI,
    ),
    ScenarioFault(
        name="of the calls in an answer the first is dropped",
        file="runtime/providers/openai/answer.py",
        original="self._calls.add_whole(calls) if whole else self._calls.add(calls)",
        planted="self._calls.add_whole(calls[1:]) if whole else self._calls.add(calls[1:])",
        world=OPENAI,
    ),
)

SCENARIO_FAULTS = (
    *JOURNAL,
    *EFFECTS,
    *KERNEL,
    *SESSION,
    *TOOLS,
    *MODEL_CALLS,
    *STORES,
    *DISK_FAULTS,
    *PROVIDERS,
    *WIRE_FAULTS,
)
