"""From where the answers come that an agent's code gets in a replay: of its models, its tools and its memories.

Read `asked` first for what a level takes from where. `bodies` and `memories` give what was recorded, or what today's
code gives at that place of the log; `never_answered` is about requests to which there is none.
"""
