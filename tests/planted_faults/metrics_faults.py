"""Faults of the figures and of the replay in shadow, and the tests that must find each of them; see `shell_faults`."""

from tests.planted_faults.shell_faults import ShellFault

METRICS = (
    # The fold
    ShellFault(
        "what calls cost is counted by the first configuration's prices",
        "events/views/metrics.py",
        "session.run, session.fingerprint, session.asks = True, event.fingerprint, False",
        "session.run, session.fingerprint, session.asks = True, next(iter(state.rates), ''), False",
        ("runtime/test_model_costs.py::test_prices_are_those_in_force_at_each_call",),
    ),
    ShellFault(
        "half an answer that comes after its run has no model and no price",
        "events/views/metrics.py",
        "        state.cut_short[stream] = session.fingerprint\n",
        "        pass\n",
        (
            "runtime/test_model_costs.py::"
            "test_half_an_answer_that_is_paid_after_its_run_was_cancelled_counts_for_its_model",
        ),
    ),
    ShellFault(
        "an answer costs what the model that was asked costs, whichever answered",
        "events/views/metrics_counts.py",
        "price = (price_of(answered, prices) if answered is not None else None) or price_of(asked, prices)",
        "price = price_of(asked, prices)",
        ("runtime/test_model_costs.py::test_each_model_has_its_calls_tokens_and_costs_live_and_from_the_log",),
    ),
    ShellFault(
        "a failed call is no call of its model",
        "events/views/metrics_counts.py",
        '{"calls": 1, "failures": 1}',
        '{"failures": 1}',
        (
            "runtime/test_model_costs.py::test_each_model_has_its_calls_tokens_and_costs_live_and_from_the_log",
            "events/views/test_metrics.py::test_the_figures_are_those_of_an_independent_count",
        ),
    ),
    ShellFault(
        "sessions of other agents are counted for the first one",
        "events/views/metrics.py",
        "        state.other_agents[stream] = event.agent\n",
        "        pass\n",
        ("events/views/test_metrics.py::test_sessions_are_counted_for_their_agents_in_whatever_order_agents_appear",),
    ),
    ShellFault(
        "a difference goes below nothing",
        "events/views/metrics_counts.py",
        "max(0, one - second)",
        "one - second",
        ("events/views/test_metrics.py::test_a_difference_the_wrong_way_round_is_nothing",),
    ),
    # Live
    ShellFault(
        "what is missing between two batches is not read from the log",
        "runtime/metrics/live.py",
        "            if place.position > self._state.position + 1:\n                return\n",
        "",
        (
            "runtime/test_metrics.py::"
            "test_an_event_that_the_journal_was_not_told_of_is_counted_when_the_next_one_shows_the_gap",
        ),
    ),
    ShellFault(
        "after an append of unknown outcome the log is not read again",
        "runtime/metrics/live.py",
        "        if failure.outcome_unknown:\n            self._current = False\n",
        "",
        ("runtime/test_metrics.py::test_an_event_of_unknown_outcome_is_counted_also_where_nothing_follows",),
    ),
    # The replay in shadow
    ShellFault(
        "the core decides again under the recorded configuration",
        "runtime/replay/agent_level.py",
        "return msgspec.structs.replace(event, configuration=self._today.in_place_of(event.configuration))",
        "return event",
        ("conformance/test_decide_replay.py::test_what_has_changed_is_found_where_it_first_makes_a_difference",),
    ),
    ShellFault(
        "memories are asked what they hold at the end of the log",
        "runtime/replay/current_agent.py",
        "past = await memory.at(self._store, position=position)",
        "past = await memory.at(self._store)",
        ("test_golden_logs.py::test_the_agent_of_a_golden_log_decides_all_of_it_again",),
    ),
    ShellFault(
        "a hook that reaches outside and says nothing of it is taken at its word",
        "runtime/tools/dry_run.py",
        "        reached.append(what)\n",
        "",
        (
            "conformance/test_decide_replay.py::"
            "test_what_cannot_be_done_again_is_counted_with_the_reason_and_the_rest_is_compared",
        ),
    ),
    ShellFault(
        "a hook that hangs is waited for each time",
        "runtime/tools/dry_run.py",
        "            self._silent.add(place)\n",
        "",
        ("conformance/test_decide_replay.py::test_a_hook_that_hangs_is_waited_for_once_and_not_asked_again",),
    ),
)
