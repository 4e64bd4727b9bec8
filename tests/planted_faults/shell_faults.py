"""One-line faults of what surrounds the core, and the tests that must find each of them.

A fault replaces one text, which stands exactly once in its file, by another. It is data, so that whoever adds an order
of steps, a guard or an ending adds the fault that would go unseen without it, beside the test that sees it.
"""

import msgspec


class ShellFault(msgspec.Struct, frozen=True):
    """A fault to plant."""

    name: str
    file: str
    """Such as `actors/journal.py`."""
    original: str
    planted: str
    found_by: tuple[str, ...]
    """Ids of tests below `tests/`, each of which must fail; without its parameters, in at least one row."""


ACTORS = (
    # The event-sourced shell
    ShellFault(
        "an effect begins before the batch that asks for it is durable",
        "actors/folded_actor.py",
        "            appended = await self.journal.append(batches, payloads)\n",
        "            self._reconcile()\n            appended = await self.journal.append(batches, payloads)\n",
        ("actors/test_event_sourced.py::test_a_command_is_published_and_answered_only_once_it_is_durable",),
    ),
    ShellFault(
        "an effect that is no longer wanted is not cancelled",
        "actors/event_sourced.py",
        "                cancelled[key] = effect\n                self.cancel(effect)\n",
        "                cancelled[key] = effect\n",
        ("actors/test_event_sourced.py::test_the_next_work_waits_for_cancelled_work_to_end",),
    ),
    ShellFault(
        "the next effect begins beside those that were cancelled, and callers are told before these have ended",
        "actors/event_sourced.py",
        "GraceOver(self._grace_round))\n            return\n",
        "GraceOver(self._grace_round))\n",
        ("actors/test_event_sourced.py::test_the_next_work_waits_for_cancelled_work_to_end",),
    ),
    ShellFault(
        "an effect begins again after its actor's restart",
        "actors/event_sourced.py",
        "self._effects = self._in_flight.of(self.stream)",
        "self._effects = StreamEffects()",
        ("actors/test_event_sourced.py::test_a_restart_in_the_middle_of_work_does_not_begin_it_again",),
    ),
    ShellFault(
        "an event is applied twice",
        "actors/folded_actor.py",
        "                self.state = planned.state\n",
        "                self.state = evolve_all(self.core, planned.events, planned.state)\n",
        ("runtime/test_agent_runtime.py::test_a_run_with_one_tool_call_completes_with_the_final_text",),
    ),
    ShellFault(
        "the result that raced a cancel is lost",
        "actors/event_sourced.py",
        "if message.command is not None or message.evidence is not None:\n",
        "if key in effects.running and (message.command is not None or message.evidence is not None):\n",
        (
            "conformance/test_cancellation.py::"
            "test_b7_a_tool_sees_its_token_once_and_of_its_own_result_and_the_cancel_result_one_is_in_the_history",
        ),
    ),
    ShellFault(
        "the result of an abandoned call is dropped",
        "actors/event_sourced.py",
        "if message.command is not None or message.evidence is not None:\n",
        "if key in {**effects.running, **effects.cancelled} and (message.command or message.evidence):\n",
        ("actors/test_event_sourced.py::test_what_abandoned_work_brings_after_all_is_recorded",),
    ),
    ShellFault(
        "the evidence of half an answer is dropped",
        "actors/event_sourced.py",
        "for command in (message.evidence, message.command) if command",
        "for command in (message.command,) if command",
        (
            "conformance/test_streaming.py::test_b19_what_was_streamed_of_a_cancelled_answer_is_evidence_and_its_tokens_count",
        ),
    ),
    ShellFault(
        "cancelled effects are waited for without end",
        "actors/event_sourced.py",
        "        self._effects.cancelled.clear()\n",
        "",
        ("actors/test_event_sourced.py::test_cancelled_work_that_does_not_end_is_abandoned_after_the_grace_period",),
    ),
    ShellFault(
        "the grace period of effects that have ended cuts that of later ones short",
        "actors/event_sourced.py",
        "            self._grace_round += 1\n",
        "",
        ("actors/test_event_sourced.py::test_the_end_of_an_earlier_grace_period_costs_later_work_none_of_its_own",),
    ),
    ShellFault(
        "the state is not folded again after an append that failed",
        "actors/folded_actor.py",
        "                await self._rebuild_after(error)\n",
        "                pass\n",
        (
            "actors/test_event_sourced.py::"
            "test_an_append_that_fails_is_the_askers_error_changes_nothing_and_the_next_may_succeed",
        ),
    ),
    ShellFault(
        "what a failed append wrote all the same is not published",
        "actors/folded_actor.py",
        "            self.published(self.codec.recorded(unknown))\n",
        "            pass\n",
        (
            "actors/test_event_sourced.py::"
            "test_an_append_that_fails_after_it_took_effect_is_the_askers_error_and_what_it_wrote_goes_on",
        ),
    ),
    ShellFault(
        "a state that could not be read again is taken for the log's",
        "actors/folded_actor.py",
        "        self._stale = True\n        stored = await",
        "        self._stale = False\n        stored = await",
        ("actors/test_event_sourced.py::test_a_state_that_could_not_be_read_again_is_shown_to_nobody",),
    ),
    ShellFault(
        "a result that the log refused is not offered again",
        "actors/event_sourced.py",
        "                    self._offer_later(effects.unrecorded[key])\n",
        "",
        (
            "actors/test_event_sourced.py::"
            "test_a_result_that_could_not_be_recorded_is_offered_again_and_its_work_not_done_twice",
        ),
    ),
    ShellFault(
        "a result that is in the log after all is recorded twice",
        "actors/event_sourced.py",
        "            in_doubt = message.attempt > 0 and",
        "            in_doubt = message.attempt < 0 and",
        (
            "actors/test_event_sourced.py::"
            "test_a_result_whose_append_takes_effect_long_after_it_failed_is_recorded_once",
        ),
    ),
    ShellFault(
        "an actor whose log could not be read at its start waits for a message",
        "actors/event_sourced.py",
        "            self._tell_later(RECORD_RETRY_S * 2 ** min(attempt, 5), TakeUp(attempt + 1))\n",
        "            pass\n",
        ("actors/test_event_sourced.py::test_work_goes_on_by_itself_once_a_log_that_could_not_be_read_can_be",),
    ),
    ShellFault(
        "a command overtakes the results that wait for the log",
        "actors/event_sourced.py",
        "for key in list(self._effects.unrecorded):",
        "for key in list[str]():",
        ("actors/test_event_sourced.py::test_a_result_that_waits_for_the_log_comes_before_a_later_command",),
    ),
    ShellFault(
        "a command overtakes a time that has come",
        "actors/event_sourced.py",
        "        await self._end_overdue_waits()\n",
        "",
        ("actors/test_event_sourced.py::test_a_time_that_has_come_is_recorded_before_a_command_that_arrives_after_it",),
    ),
    ShellFault(
        "a stream that moved on is the caller's error",
        "actors/folded_actor.py",
        "                if attempt == APPEND_ATTEMPTS_MAX:\n                    raise\n",
        "                raise\n",
        ("actors/test_event_sourced.py::test_a_stream_that_moved_on_is_folded_again_and_the_command_admitted_anew",),
    ),
    ShellFault(
        "a result that cannot be recorded is lost",
        "actors/event_sourced.py",
        "            await self.perform([instead], effect=effect)\n",
        "            pass\n",
        (
            "actors/test_event_sourced.py::"
            "test_a_result_that_cannot_be_recorded_is_recorded_as_a_failure_and_never_lost",
        ),
    ),
    ShellFault(
        "recovery is left out",
        "actors/event_sourced.py",
        "                await self.perform(recovery)\n",
        "                pass\n",
        (
            "conformance/test_crash_recovery.py::test_b20_a_repeatable_tool_that_no_longer_exists_is_answered_and_not_run",
        ),
    ),
    ShellFault(
        "the time of a stream goes back with the clock",
        "actors/folded_actor.py",
        "self.time = max(self.system.clock.now_us(), self.time)",
        "self.time = self.system.clock.now_us()",
        ("actors/test_event_sourced.py::test_the_time_of_a_stream_never_goes_back",),
    ),
    ShellFault(
        "a runtime that closes begins new effects",
        "actors/event_sourced.py",
        "key in self._resting or self._in_flight.draining:",
        "key in self._resting:",
        ("actors/test_event_sourced.py::test_draining_begins_nothing_more_and_returns_when_the_last_work_is_recorded",),
    ),
    # Actors of users' cores
    ShellFault(
        "a reader is given a part of the state",
        "actors/hosted.py",
        "else copy.deepcopy(found))",
        "else found)",
        ("actors/test_hosting.py::test_case_h10_what_a_reader_a_listener_or_work_was_given_is_theirs_to_change",),
    ),
    ShellFault(
        "work is given a part of the state",
        "actors/hosted.py",
        "BeginWork(self.actor_ref, copy.deepcopy(effect))",
        "BeginWork(self.actor_ref, effect)",
        ("actors/test_hosting.py::test_case_h10_what_a_reader_a_listener_or_work_was_given_is_theirs_to_change",),
    ),
    ShellFault(
        "work that fails is done again without a pause",
        "actors/hosted.py",
        "return PAUSES.pause_s(ends + 1)",
        "return 0.0",
        ("actors/test_hosting.py::test_work_that_ends_without_a_result_is_done_again_after_growing_pauses",),
    ),
    ShellFault(
        "a pause does not grow",
        "actors/event_sourced.py",
        "self._ends[key] = 0 if recorded else self._ends.get(key, 0) + 1",
        "self._ends[key] = 0",
        ("actors/test_hosting.py::test_work_that_ends_without_a_result_is_done_again_after_growing_pauses",),
    ),
    ShellFault(
        "a pause goes on for work that was given up and is wanted anew",
        "actors/event_sourced.py",
        "                self._resting.remove(key)\n                self._effects.forget_timer(key)\n",
        "                pass\n",
        ("actors/test_hosting.py::test_work_that_ends_without_a_result_is_done_again_after_growing_pauses",),
    ),
    ShellFault(
        "work that an earlier process left waits for a message",
        "actors/hosting.py",
        "self._system.ref(head.stream).tell(TakeUp(0))",
        "self._system.ref(head.stream)",
        ("actors/test_hosting.py::test_work_left_by_an_earlier_process_goes_on_as_soon_as_its_kind_is_hosted",),
    ),
    ShellFault(
        "what asked for work is forgotten at a restart",
        "actors/hosted.py",
        "                self._causes.note(item.pending or (), item.version, item.correlation)\n",
        "                pass\n",
        ("actors/test_hosting.py::test_work_is_done_and_what_it_brings_is_caused_by_the_event_that_asked_for_it",),
    ),
    ShellFault(
        "an actor that works is let go",
        "actors/event_sourced.py",
        "        return all(effect.idle for effect in effects.running.values())\n",
        "        return True\n",
        (
            "actors/test_hosting.py::test_an_actor_is_let_go_when_nothing_but_time_passes_and_its_time_finds_it",
            "conformance/test_passivation.py::test_a_session_at_work_stays_and_a_pause_before_a_retry_is_no_work",
        ),
    ),
    ShellFault(
        "an actor that is let go takes its timers with it",
        "actors/event_sourced.py",
        'makes a new instance."""\n        self._in_flight.forget(self.stream)\n',
        'makes a new instance."""\n        self._let_go()\n',
        ("conformance/test_passivation.py::test_the_time_for_a_decision_passes_while_the_session_is_not_in_memory",),
    ),
    ShellFault(
        "a session that was let go is taken for one that a crash interrupted",
        "actors/event_sourced.py",
        "if wanted and not self._effects.taken_up and not self._effects.carried_out():",
        "if wanted and not self._effects.carried_out():",
        ("conformance/test_passivation.py::test_a_session_at_work_stays_and_a_pause_before_a_retry_is_no_work",),
    ),
    ShellFault(
        "a timer does not look at the wall clock",
        "actors/effects.py",
        "        left_s = (effect.due_at - clock.now_us()) / 1_000_000\n",
        "        left_s = 1e9\n",
        (
            "conformance/test_passivation.py::"
            "test_an_input_for_later_finds_a_session_that_is_not_in_memory_also_when_the_clock_is_set",
        ),
    ),
    ShellFault(
        "a proxy goes around the log",
        "actors/folded_actor.py",
        "if isinstance(message, ProxyCall | ProxyGetAttr | ProxySetAttr):",
        "if isinstance(message, ProxySetAttr):",
        ("actors/test_hosting.py::test_an_event_sourced_actor_has_no_proxy",),
    ),
    ShellFault(
        "a system closes its log before work has come to an end",
        "actors/system.py",
        "            await self._in_flight.drain(self.clock, self._close_grace_s if grace_s is None else grace_s)\n",
        "            pass\n",
        ("actors/test_system.py::test_the_end_waits_for_work_and_records_what_it_brings",),
    ),
    ShellFault(
        "a system keeps its log locked after its end",
        "actors/system.py",
        "                await self._close_log()\n",
        "                pass\n",
        ("actors/test_system.py::test_a_log_has_one_owner_and_is_free_after_the_end",),
    ),
    ShellFault(
        "a poison event is not named by its stream",
        "actors/folded_actor.py",
        'raise LogFormatError(f"stream {self.stream}: {error}") from error.__cause__',
        "raise",
        ("actors/test_hosting.py::test_a_poison_event_makes_each_message_a_clear_error_and_costs_no_other_actor",),
    ),
    ShellFault(
        "work that is cancelled before its first step tells nobody its end",
        "actors/hosted.py",
        "if piece.begun and piece.task is not None:",
        "if piece.task is not None:",
        (
            "actors/test_effect_worker.py::"
            "test_work_that_is_cancelled_before_its_first_step_is_not_done_and_tells_its_end",
        ),
    ),
    ShellFault(
        "cancelled effects are forgotten with the instance that cancelled them",
        "actors/effects.py",
        "effects.running or effects.cancelled or effects.unrecorded",
        "effects.running or effects.unrecorded",
        ("actors/test_event_sourced.py::test_a_restart_during_the_grace_period_still_waits_for_the_cancelled_work",),
    ),
    # The journal
    ShellFault(
        "an append is acknowledged before its transaction",
        "actors/journal.py",
        "        cancelled: asyncio.CancelledError | None = None\n",
        "        return [Appended(stream=b.stream, position=1, version=1, chain=b'') for b in batches]\n"
        "        cancelled: asyncio.CancelledError | None = None\n",
        ("actors/test_event_sourced.py::test_a_command_is_published_and_answered_only_once_it_is_durable",),
    ),
    ShellFault(
        "one refused append fails those that shared its transaction",
        "actors/journal.py",
        "                await self._write_group([entry])\n",
        "                entry.settle(None, self._failure(error, outcome_unknown=False))\n",
        ("actors/test_journal.py::test_a_wrong_expected_version_in_a_group_fails_only_its_own_append",),
    ),
    ShellFault(
        "the refusal of an append that shared a transaction is lost",
        "actors/journal.py",
        "                self._fail(group, self._failure(error, outcome_unknown=False))\n",
        "                group[0].settle([])\n",
        ("actors/test_journal.py::test_a_wrong_expected_version_in_a_group_fails_only_its_own_append",),
    ),
    ShellFault(
        "all that share a transaction are told the place of the first",
        "actors/journal.py",
        "                start = end\n",
        "",
        ("actors/test_journal.py::test_appends_that_arrive_while_one_is_written_share_the_next_transaction",),
    ),
    ShellFault(
        "a cancelled caller is told before the outcome is known",
        "actors/journal.py",
        "                entry.wake = loop.create_future()  # The cancellation took the other one with it.\n",
        "                break\n",
        ("actors/test_journal.py::test_a_caller_that_is_cancelled_is_told_after_the_outcome_is_known",),
    ),
    # Those who carry effects out
    ShellFault(
        "a cancellation that the log refuses is lost",
        "actors/agent/session.py",
        "            self._tell_later(RECORD_RETRY_S * 2 ** min(message.attempt, 5), again)\n",
        "            del again\n",
        ("runtime/test_agent_runtime.py::test_a_cancellation_that_the_log_refuses_at_first_is_not_lost",),
    ),
    ShellFault(
        "a state that is not durable is shown",
        "actors/agent/session.py",
        "            await self.require_durable_state()\n            return message.question",
        "            return message.question",
        (
            "conformance/test_store_failures.py::"
            "test_c3_a_state_that_cannot_be_read_again_after_a_failed_append_is_shown_to_nobody",
        ),
    ),
    ShellFault(
        "a run that goes on in new code is not told of it",
        "actors/agent/session.py",
        "        if self.state.configuration is configuration:\n",
        "        if self.state.configuration is not None:\n",
        ("conformance/test_runs.py::test_runs[memory-A25: an input in new code is answered by its configuration]",),
    ),
    ShellFault(
        "a call that was given up is not counted",
        "actors/agent/tool.py",
        "                    await self._note(AbandonCall(running.message.started))\n",
        "                    pass\n",
        ("actors/test_tool_actor.py::test_silence_beyond_the_timeout_gives_a_call_up_and_its_late_result_is_told_too",),
    ),
    ShellFault(
        "a model call that is begun twice under one key is made twice",
        "actors/agent/model.py",
        "                if place not in self._calls:\n",
        "                if place:\n",
        ("actors/test_model_actor.py::test_a_call_begun_twice_under_one_key_is_made_once_and_others_run_beside_it",),
    ),
    ShellFault(
        "a model call that is cancelled before it begins is made",
        "actors/agent/model.py",
        "            if not calling.cancelled:\n                ended =",
        "            if calling.begun:\n                ended =",
        ("actors/test_model_actor.py::test_a_call_that_is_cancelled_before_it_begins_asks_nobody",),
    ),
    ShellFault(
        "half an answer is lost when its stream fails",
        "actors/agent/model.py",
        "        if not isinstance(ended.command, RecordModelResponse):\n",
        "        if ended.command is None:\n",
        (
            "conformance/test_streaming.py::"
            "test_c8_a_stream_that_fails_half_way_delivers_the_failure_and_the_half_is_not_history",
        ),
    ),
    ShellFault(
        "a tool's progress is no sign of life",
        "actors/agent/tool.py",
        "            if not (running.told or running.silent or running.waits or running.token.cancelled):\n"
        "                self._listen(running)\n",
        "",
        ("actors/test_tool_actor.py::test_progress_is_published_and_counts_as_a_sign_of_life_from_any_thread",),
    ),
    ShellFault(
        "a tool call that is begun twice under one key runs twice",
        "actors/agent/tool.py",
        "        if place in self._calls:\n            return\n",
        "",
        ("actors/test_tool_actor.py::test_a_call_begun_twice_under_one_key_runs_once",),
    ),
    ShellFault(
        "a tool that watches its token is not shown it",
        "actors/agent/tool.py",
        "        running.token.cancel(reason)\n",
        "",
        (
            "conformance/test_cancellation.py::test_b7_a_tool_sees_its_token_once_and_of_its_own_result_and_the_cancel_"
            "result_one_is_in_the_history[memory-returned after]",
        ),
    ),
    ShellFault(
        "a tool that watches its token for ever is never cancelled",
        "actors/agent/tool.py",
        "            running.patience = self.system.clock.call_later(self._patience_s, task.cancel)\n",
        "            pass\n",
        ("actors/test_tool_actor.py::test_a_body_that_watches_its_token_is_left_time_and_then_cancelled",),
    ),
    ShellFault(
        "what a body returned after it was given up is dropped",
        "actors/agent/tool.py",
        "        running.told = True\n        try:",
        "        if running.told:\n            return\n        running.told = True\n        try:",
        ("actors/test_tool_actor.py::test_silence_beyond_the_timeout_gives_a_call_up_and_its_late_result_is_told_too",),
    ),
    ShellFault(
        "the approval handler is asked twice",
        "actors/agent/approval.py",
        "                if place not in self._waiting:\n",
        "                if place:\n",
        ("actors/agent/test_approval.py::test_a_wait_that_begins_twice_is_asked_about_once",),
    ),
    ShellFault(
        "a cancelled approval does not say that it has ended",
        "actors/agent/approval.py",
        "                if waiting is not None:\n                    self._tell(waiting, EffectEnded(key=key))\n",
        "",
        ("actors/agent/test_approval.py::test_a_cancelled_wait_ends_at_once_and_its_handler_with_it",),
    ),
    ShellFault(
        "a handler that leaves the decision to somebody else allows the call",
        "actors/agent/approval.py",
        "        case None:\n            return None\n",
        "        case None:\n            return DecideApproval(call=request.call, allowed=True)\n",
        (
            "conformance/test_approvals.py::"
            "test_approvals[memory-a handler that gives nothing leaves the call waiting, on the loop]",
        ),
    ),
    ShellFault(
        "a policy that denies is ignored",
        "actors/calls/policy.py",
        '            return Verdict(verdict="deny", reason=recorded_reason(reason), action=verdict.action)\n',
        "            return verdict\n",
        (
            "conformance/test_approvals.py::"
            "test_approvals[memory-a policy that denies wins over what was allowed always]",
        ),
    ),
    ShellFault(
        "a call runs although the policy failed on it",
        "actors/calls/policy.py",
        '        return _broken(f"The policy failed: {text_of_error(error) or type(error).__name__}")\n',
        "        return verdict\n",
        ("actors/calls/test_policy.py::test_a_policy_that_raises_breaks_its_call_and_no_other",),
    ),
    ShellFault(
        "a tool that was not offered runs",
        "actors/calls/policy.py",
        "        elif spec is None or use.name not in names:",
        "        elif spec is None:",
        ("actors/calls/test_policy.py::test_a_call_of_a_tool_that_was_not_offered_is_denied",),
    ),
    # The kernel
    ShellFault(
        "a new message overtakes those that wait",
        "actors/kernel/mailbox.py",
        "        queue.append((message, reply))\n",
        "        queue.appendleft((message, reply))\n",
        ("actors/kernel/test_actor.py::test_messages_are_handled_one_at_a_time_in_the_order_of_arrival",),
    ),
    ShellFault(
        "a told message that nobody takes is not kept",
        "actors/kernel/mailbox.py",
        "            self.system.set_aside(self.address, message, reason)",
        "            assert reply is None",
        (
            "actors/kernel/test_ref.py::test_a_told_message_that_comes_to_nothing_by_a_stop_is_logged_and_parked",
            "actors/kernel/test_mailbox.py::test_a_told_message_that_nobody_takes_any_more_is_parked",
        ),
    ),
    ShellFault(
        "a full mailbox takes one more",
        "actors/kernel/mailbox.py",
        "elif len(queue) >= self.capacity and",
        "elif len(queue) > self.capacity and",
        (
            "actors/kernel/test_mailbox.py::test_a_full_mailbox_refuses_the_next_message_and_says_so_to_who_told_and_who_asked",
        ),
    ),
    ShellFault(
        "results of accepted work find no room",
        "actors/kernel/mailbox.py",
        "_ALWAYS_TAKEN: Final = (Vital, Signal)",
        "_ALWAYS_TAKEN: Final = (Signal,)",
        ("actors/kernel/test_mailbox.py::test_what_belongs_to_accepted_work_is_taken_all_the_same_and_so_is_a_stop",),
    ),
    ShellFault(
        "the messages of other threads that are on their way are not counted",
        "actors/kernel/system.py",
        "if depth + posted >= capacity and",
        "if depth >= capacity and",
        (
            "actors/kernel/test_mailbox.py::"
            "test_a_thread_is_told_of_a_full_mailbox_too_though_its_messages_are_still_on_their_way",
        ),
    ),
    ShellFault(
        "the limit of a handler's time holds for nobody",
        "actors/kernel/cell.py",
        "        timer = self.system.clock.call_later(limit_s, end)\n",
        "        timer = self.system.clock.call_later(limit_s * 1e6, end)\n",
        ("actors/kernel/test_mailbox.py::test_a_handler_that_takes_too_long_is_cancelled_and_has_failed",),
    ),
    ShellFault(
        "the actor that came to rest last is let go first",
        "actors/kernel/lifecycle.py",
        "            self._let_go(next(iter(self._idle)))\n",
        "            self._let_go(next(reversed(self._idle)))\n",
        ("actors/kernel/test_passivation.py::test_beyond_the_limit_those_go_that_were_idle_longest",),
    ),
    ShellFault(
        "a message does not end an actor's rest",
        "actors/kernel/cell.py",
        "        self.system.passivation.woken(self)\n        if self._waits:",
        "        if self._waits:",
        ("actors/kernel/test_passivation.py::test_a_message_begins_the_idle_time_anew",),
    ),
    ShellFault(
        "a refusal under tell restarts the actor",
        "actors/kernel/cell.py",
        "        if isinstance(error, RefoldError):\n            return\n        failed",
        "        if isinstance(error, RefoldError) and reply is not None:\n            return\n        failed",
        ("actors/kernel/test_supervision.py::test_a_refusal_under_tell_is_parked_and_the_actor_keeps_its_state",),
    ),
    ShellFault(
        "a busy actor keeps the loop to itself",
        "actors/kernel/cell.py",
        "        for _ in range(MESSAGES_PER_ACTIVATION):\n",
        "        while True:\n",
        ("actors/kernel/test_actor.py::test_a_busy_actor_lets_others_have_their_turn",),
    ),
    ShellFault(
        "a message that was withdrawn is handled",
        "actors/kernel/cell.py",
        "        if reply is not None and reply.withdrawn:\n            return\n        if message is STOP:",
        "        if message is STOP:",
        ("actors/kernel/test_reply.py::test_awaiting_an_ask_of_oneself_is_refused_and_the_message_never_handled",),
    ),
    ShellFault(
        "an actor that failed goes on with the state in which it failed",
        "actors/kernel/cell.py",
        '        await self._recover(error, "message")\n',
        "        self.actor = failed\n",
        ("actors/kernel/test_supervision.py::test_any_other_error_under_ask_goes_to_the_asker_and_restarts_the_actor",),
    ),
    ShellFault(
        "a provider can change the history",
        "actors/calls/conversation.py",
        "        self._messages += map(own_copy, whole)\n",
        "        self._messages += whole\n",
        ("actors/calls/test_conversation.py::test_what_a_reader_does_to_arguments_stays_with_the_reader",),
    ),
    ShellFault(
        "a request holds messages of the history before it was cleared",
        "actors/calls/conversation.py",
        "        if source is not self._source or length < len(self._messages):\n",
        "        if self._source is None:\n",
        (
            "conformance/test_runs.py::"
            "test_runs[memory-A27: after clear the model sees nothing of before, and the log keeps it]",
        ),
    ),
    ShellFault(
        "a callback that is added to a cancelled token is lost",
        "actors/cancellation.py",
        "        callback()\n        return _nothing_to_forget\n",
        "        return _nothing_to_forget\n",
        ("actors/test_cancellation.py::test_a_callback_added_after_the_cancel_runs_at_once",),
    ),
    ShellFault(
        "a callback that fails takes the others with it",
        "actors/cancellation.py",
        '            except Exception:\n                log.exception("a callback of',
        '            except OSError:\n                log.exception("a callback of',
        ("actors/test_cancellation.py::test_a_callback_that_raises_keeps_no_other_from_being_called",),
    ),
    ShellFault(
        "the thread of abandoned work is not replaced",
        "actors/thread_pool.py",
        "already\n                else:\n                    self._give_place_away()\n",
        "already\n",
        ("actors/test_thread_pool.py::test_abandoned_work_is_named_and_its_thread_replaced",),
    ),
    ShellFault(
        "abandoned work that has ended is named for ever",
        "actors/thread_pool.py",
        "                    del self._abandoned[work]\n",
        "",
        ("actors/test_thread_pool.py::test_abandoned_work_that_has_returned_is_named_no_longer_and_its_thread_ends",),
    ),
)

STORES = (
    ShellFault(
        "the state at a position is that before it",
        "stores/past_state.py",
        "item.position <= position]",
        "item.position < position]",
        ("memory/test_time_travel.py::test_each_place_has_what_was_there_then",),
    ),
    ShellFault(
        "a payload under a wrong key is kept",
        "stores/append_rules.py",
        "        if hashlib.sha256(payload).hexdigest() != payload_hash:\n",
        "        if not payload_hash:\n",
        ("stores/test_memory.py::TestInMemoryStore::test_a_payload_that_does_not_hash_to_its_key_is_refused",),
    ),
    ShellFault(
        "a batch without events is kept",
        "stores/append_rules.py",
        "    if not batch.events:\n",
        "    if not batch:\n",
        ("stores/test_memory.py::TestInMemoryStore::test_what_cannot_be_kept_is_refused",),
    ),
    ShellFault(
        "an append that fails is not rolled back",
        "stores/sqlite/append.py",
        "        if self._connection.in_transaction:\n",
        "        if not self._connection:\n",
        (
            "stores/sqlite/test_store.py::TestSQLiteStore::"
            "test_one_refused_batch_takes_all_others_and_the_payloads_with_it",
        ),
    ),
    ShellFault(
        "the version that an append expects is not checked",
        "stores/sqlite/append.py",
        "            if version != batch.expected_version:\n",
        "            if version < batch.expected_version:\n",
        ("stores/sqlite/test_store.py::TestSQLiteStore::test_a_wrong_expected_version_is_refused_and_named",),
    ),
    ShellFault(
        "a stale owner writes",
        "stores/sqlite/append.py",
        "        if incarnation != self._incarnation:\n",
        "        if incarnation < self._incarnation:\n",
        ("stores/sqlite/test_ownership.py::test_an_owner_whose_lock_file_was_removed_writes_nothing_beside_the_next",),
    ),
    ShellFault(
        "an append is acknowledged before its commit",
        "stores/sqlite/append.py",
        '            connection.execute("COMMIT")\n            self._fault("append.committed")\n',
        '            self._fault("append.committed")\n            connection.execute("COMMIT")\n',
        ("stores/sqlite/test_writer.py::test_an_append_that_dies_is_in_as_a_whole_or_not_at_all",),
    ),
    ShellFault(
        "the ends of streams are remembered after an append that failed",
        "stores/sqlite/append.py",
        "    def _forget_and_roll_back(self) -> None:\n        self._heads.clear()\n",
        "    def _forget_and_roll_back(self) -> None:\n",
        ("stores/sqlite/test_writer.py::test_an_append_that_dies_is_in_as_a_whole_or_not_at_all",),
    ),
    ShellFault(
        "what a connection reads after an I/O error is believed",
        "stores/sqlite/append.py",
        "        if primary_code(error) == sqlite3.SQLITE_IOERR:\n",
        "        if primary_code(error) == sqlite3.SQLITE_MISUSE:\n",
        ("stores/sqlite/test_writer.py::test_after_an_io_error_the_outcome_is_unknown_until_the_file_was_opened_anew",),
    ),
    ShellFault(
        "a write in doubt does not have the file opened anew",
        "stores/sqlite/writer.py",
        "                self._suspect = _in_doubt(future)\n",
        "                self._suspect = False\n",
        ("stores/sqlite/test_writer.py::test_after_an_io_error_the_outcome_is_unknown_until_the_file_was_opened_anew",),
    ),
    ShellFault(
        "a log stays owned after its store was closed",
        "stores/sqlite/writer.py",
        "        finally:\n            self._ownership.release()\n",
        "        finally:\n            pass\n",
        ("stores/sqlite/test_ownership.py::test_case_m03_a_second_store_of_this_process_is_refused",),
    ),
    ShellFault(
        "a refused append leaves its payloads",
        "stores/memory.py",
        '        self._fault("append.begun")\n',
        '        self._fault("append.begun")\n        self._payloads.update(payloads)\n',
        ("stores/test_memory.py::TestInMemoryStore::test_one_refused_batch_takes_all_others_and_the_payloads_with_it",),
    ),
)

RUNTIME = (
    # Kinds of the application's own
    ShellFault(
        "an event of a user's kind that cannot be folded is sound",
        "runtime/inspection/kinds.py",
        "            self._state = evolve_all(self._core, (event,), self._state)\n",
        "            pass\n",
        ("runtime/test_own_kinds.py::test_check_decodes_and_folds_kinds_whose_cores_are_given",),
    ),
    ShellFault(
        "a caller is told before the cancelled effects of its run have ended",
        "runtime/sessions/event_bus.py",
        "                self._ending.setdefault(session, {})[event.event.run] = event.version\n",
        "                self._ending.setdefault(session, {})[event.event.run] = event.version\n"
        "                for f in self._followers[session]:\n"
        "                    f.tell(event.event.run, EndedRun(event.version, None))\n",
        ("runtime/sessions/test_event_bus.py::test_a_follower_is_told_of_an_end_only_when_the_session_has_settled",),
    ),
    ShellFault(
        "a subscriber that raises keeps the others from being told",
        "runtime/sessions/event_bus.py",
        "        except BaseException:\n            self.failures += 1\n",
        "        except OSError:\n            self.failures += 1\n",
        ("runtime/sessions/test_event_bus.py::test_a_subscriber_that_raises_is_counted_and_the_others_are_told",),
    ),
    ShellFault(
        "a subscriber can change the arguments of a call",
        "runtime/sessions/event_bus.py",
        "shown = _own_copy(event) if subscribers or subscriptions else event",
        "shown = event",
        (
            "runtime/sessions/test_event_bus.py::test_what_a_subscriber_does_to_arguments_changes_no_event_of_the_session",
        ),
    ),
    ShellFault(
        "the error of on_event is swallowed",
        "runtime/sessions/run_handle.py",
        "    if watcher.failure is not None:\n        raise watcher.failure\n",
        "",
        (
            "conformance/test_streaming.py::test_a4_an_exception_of_the_handler_cancels_the_run_and_is_the_callers[memory]",
        ),
    ),
    ShellFault(
        "events that come before the run is known are not shown to on_event",
        "runtime/sessions/run_handle.py",
        "        for event in early:\n            self.see(event)\n",
        "",
        ("conformance/test_streaming.py::test_a4_a_handler_sees_every_event_of_its_run_in_order[memory]",),
    ),
    ShellFault(
        "who is cancelled takes the run of another caller with it",
        "runtime/sessions/run_handle.py",
        "            if self._access.runtime.hub.is_awaited(self._access.session, run, besides=follower):\n",
        "            if not run:\n",
        (
            "conformance/test_cancellation.py::"
            "test_cancellation[memory-of two callers with one key of whom one is cancelled the other keeps the run]",
        ),
    ),
    ShellFault(
        "a caller who is cancelled leaves the run alone",
        "runtime/sessions/run_handle.py",
        '                self._access.cancel_surely(CancelRun(run=run, reason="the caller was cancelled"))\n',
        "                self._task.cancel()\n",
        ("conformance/test_asyncio_citizenship.py::test_a_caller_may_be_cancelled_at_every_event_of_a_run",),
    ),
    ShellFault(
        "suspects are resumed together",
        "runtime/lifecycle.py",
        "            suspects.append(head.stream)\n",
        "            _wake(system, head.stream)\n",
        (
            "runtime/test_resuming.py::"
            "test_runs_that_were_resumed_in_vain_go_on_last_and_each_after_the_one_before_has_made_progress",
        ),
    ),
    ShellFault(
        "a session that cannot be read keeps the others from resuming",
        "runtime/lifecycle.py",
        '        log.warning("%s cannot be read: %s", head.stream, error)\n        return False\n',
        '        log.warning("%s cannot be read: %s", head.stream, error)\n        raise\n',
        ("runtime/test_resuming.py::test_a_stream_that_cannot_be_read_costs_its_own_session_only",),
    ),
    ShellFault(
        "a subscription loses the events that find no room",
        "runtime/sessions/subscription.py",
        "        else:\n            self._behind[session] = _Behind(before, version, open_ended=False)\n",
        "        else:\n            self._missed += 1\n",
        ("runtime/sessions/test_subscription.py::test_events_that_found_no_room_are_read_after_the_end_too",),
    ),
    ShellFault(
        "what a subscription missed is counted wrong",
        "runtime/sessions/subscription.py",
        "            self._missed += 1\n        else:\n            self._append(item)\n",
        "            self._missed = 1\n        else:\n            self._append(item)\n",
        (
            "conformance/test_streaming.py::test_a7_a_subscriber_that_lags_learns_what_it_missed_and_loses_no_event[memory]",
        ),
    ),
    ShellFault(
        "an event that was read from the log is yielded again",
        "runtime/sessions/subscription.py",
        "            if version <= self._taken:\n                return\n            before = self._taken\n",
        "            before = min(self._taken, before)\n",
        ("runtime/sessions/test_subscription.py::test_an_event_that_was_read_before_it_was_published_comes_once",),
    ),
    ShellFault(
        "a stream that is left early lets its run go on",
        "runtime/sessions/stream.py",
        "        if sent is not None:\n            sent.give_up()\n            await sent.over()\n",
        "        if sent is not None:\n            await asyncio.sleep(0)\n",
        (
            "conformance/test_streaming.py::"
            "test_a5_b6_leaving_the_loop_inside_a_call_leaves_no_answer_no_call_and_one_cancelled[memory]",
        ),
    ),
    ShellFault(
        "the stream of a run shows what belongs to another",
        "runtime/sessions/stream.py",
        "        if not self._events.include(recorded):\n            return False\n",
        "        if not self._events.include(recorded):\n            return self._started\n",
        ("runtime/test_session_stream.py::test_the_stream_of_a_run_shows_no_late_evidence_of_the_run_before_it",),
    ),
    ShellFault(
        "closing waits for no effect",
        "runtime/agent_runtime.py",
        "            await self._in_flight.drain(self.system.clock, self.options.close_grace_s)\n",
        "            self._in_flight.draining = True\n",
        (
            "conformance/test_cancellation.py::test_b17_closing_waits_for_a_tool_to_reach_the_log_and_leaves_its_run_open",
        ),
    ),
    ShellFault(
        "an orderly end counts as a crash",
        "runtime/lifecycle.py",
        "    return bool(last) and isinstance(last[-1], RuntimeClosed)\n",
        "    return not last\n",
        ("runtime/test_closing.py::test_a_run_that_was_left_open_by_an_orderly_end_is_known_not_to_have_crashed",),
    ),
    ShellFault(
        "who waits for a session that failed for good is not told",
        "runtime/agent_runtime.py",
        '            self.hub.session_failed(SessionId(identifier), f"it was stopped: {failure.message}")\n',
        "            pass\n",
        ("runtime/test_agent_runtime.py::test_a_caller_is_told_when_its_session_has_failed_for_good_and_others_go_on",),
    ),
    ShellFault(
        "a row of the inbox is performed twice",
        "runtime/remote/owner.py",
        "asked, payloads = session_command(command, key)",
        'asked, payloads = session_command(command, f"{key} {id(command)}")',
        ("runtime/remote/test_owner.py::test_what_is_in_the_log_and_was_not_noted_is_not_performed_again",),
    ),
    ShellFault(
        "a bad row keeps those behind it from being performed",
        "runtime/remote/owner.py",
        "CommandRejected, ConfigError) as error:\n            return Refused(message=str(error))\n",
        "CommandRejected, ConfigError):\n            raise\n",
        (
            "runtime/remote/test_owner.py::test_a_row_that_the_session_refuses_is_answered_and_lets_those_behind_it_be_performed",
        ),
    ),
    ShellFault(
        "a row is noted before it is in the log",
        "runtime/remote/owner.py",
        "                    await self._inbox.finish(entry, await self._perform(entry))\n",
        '                    await self._inbox.finish(entry, Refused(message=""))\n'
        "                    await self._perform(entry)\n",
        (
            "runtime/remote/test_owner.py::"
            "test_a_row_that_the_log_refuses_is_performed_later_and_lets_other_sessions_go_first",
        ),
    ),
)

USERS_CORES = (
    ShellFault(
        "a stimulus is evolved as it was decided and not as the log gives it back",
        "events/core/checked_core.py",
        "return self._recorded(stimulus)",
        "return stimulus",
        ("events/core/test_checked_core.py::test_what_is_evolved_is_what_the_log_gives_back",),
    ),
    ShellFault(
        "an event shares its parts with the state that was made of it",
        "events/core/checked_core.py",
        "if type(event) in self._mutable:",
        "if type(event) in ():",
        ("actors/test_hosting.py::test_an_event_is_recorded_as_it_was_decided_whatever_the_state_makes_of_its_parts",),
    ),
    ShellFault(
        "a consequence shares its parts with the state that it was made of",
        "events/core/checked_core.py",
        "return [self._recorded(consequence) for consequence in decided]",
        "return list(decided)",
        ("actors/test_hosting.py::test_an_event_is_recorded_as_it_was_decided_whatever_the_state_makes_of_its_parts",),
    ),
    ShellFault(
        "a key lets another command pass for the first one",
        "events/core/checked_core.py",
        "if known.digest == key.digest:",
        "if known.digest:",
        ("actors/test_hosting.py::test_a_keyed_command_takes_effect_once_also_after_a_restart",),
    ),
)
"""In what surrounds a core of the user's own, before any shell."""

CONNECTIONS = (
    ShellFault(
        "a key is another command where the owner gets it than where the inbox does",
        "runtime/remote/protocol.py",
        "    return former if former in keys else key\n",
        "    return former\n",
        ("runtime/remote/test_connection.py::test_a_key_is_one_run_whether_the_owner_or_the_inbox_gets_it",),
    ),
    ShellFault(
        "a key that an earlier Refold recorded is forgotten",
        "runtime/remote/protocol.py",
        "    return former if former in keys else key\n",
        "    return key\n",
        ("runtime/remote/test_connection.py::test_a_key_that_an_earlier_refold_recorded_with_its_prefix_is_found",),
    ),
    ShellFault(
        "a cancellation overtakes the input that begins its session",
        "runtime/remote/client.py",
        "        if state.version == 0:\n            return False\n",
        "",
        (
            "runtime/remote/test_connection.py::"
            "test_a_new_session_waits_in_the_inbox_for_the_next_runtime_and_so_does_its_cancellation",
        ),
    ),
    ShellFault(
        "who waits for a run does not wait for a runtime",
        "runtime/remote/connection.py",
        "            ownerless_s=connection.patience_s,\n",
        "            ownerless_s=0,\n",
        (
            "runtime/remote/test_connection.py::test_without_a_runtime_an_input_is_recorded_and_the_wait_for_its_run_ends",
        ),
    ),
    ShellFault(
        "a log that its owner is about to make is not waited for",
        "runtime/remote/connection.py",
        "            and log_owner(self.log) is not None\n",
        "            and False\n",
        ("runtime/remote/test_connection.py::test_a_log_that_its_owner_is_about_to_make_is_waited_for",),
    ),
    ShellFault(
        "an error of the block is taken for the end by SIGTERM",
        "runtime/sigterm.py",
        "        return isinstance(error, ours)\n",
        "        return True\n",
        ("conformance/test_sigterm.py::test_an_error_of_the_block_is_raised_as_it_is",),
    ),
    ShellFault(
        "the handler of SIGTERM that was there before is lost",
        "runtime/sigterm.py",
        "            signal.signal(signal.SIGTERM, previous)\n",
        "            pass\n",
        ("conformance/test_sigterm.py::test_the_handler_that_was_there_before_is_there_again_after_the_block",),
    ),
    ShellFault(
        "a forked child closes its parent's runtime",
        "runtime/agent_runtime.py",
        "if self._store is None or os.getpid() != self._pid:",
        "if self._store is None:",
        (
            "conformance/test_forked_processes.py::test_a_child_leaves_the_parents_runtime_and_log_alone_however_it_ends",
        ),
    ),
)


SHELL_FAULTS = (*ACTORS, *STORES, *RUNTIME, *USERS_CORES, *CONNECTIONS)
