"""The ReAct protocol: thought, action and observation as text.

Read `text` first.
"""
