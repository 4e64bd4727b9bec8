"""The demonstration behind `refold demo`: an agent is killed in the middle of a tool, twice, goes on, and finishes.

Read `refold.demo.agent` for what the agent does, and `refold.demo.story` for how its process is killed and for what
must be true in the end. Nothing else in Refold uses this.
"""
