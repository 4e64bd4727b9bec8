"""The event-sourced shell: what puts a pure core into an actor, between its mailbox and its log.

Read `event_sourced` first.
"""
