"""The demonstration behind `refold demo`: an agent that is killed in the middle of a tool, twice, and finishes.

Read `scripted_model` for what the agent does, `incident_tools` for what with, `agent_process` for the process that is
killed, `killing` for who kills it, and `crash_story` for what is shown to be true afterwards. Nothing here is used by
the rest of Refold.
"""
