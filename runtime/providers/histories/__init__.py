"""Histories in the two wire forms: `messages` of the Messages API (Anthropic) and of Chat Completions (OpenAI).

    history = history_from_openai(json.load(file))
    await session.import_history(history.messages)

Read `wire_history` first, then `openai_form`. The rules: what is certain in meaning is not refused; what is read and
written again in the same form is the same; and what cannot be kept is named, in `WireHistory.left_out` and in the
`left_out` of the writers.
"""
