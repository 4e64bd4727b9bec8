"""What must not be in a log: how it is found in texts and values, and taken out.

Read `redaction` first; `spellings` says as what else a secret may stand in a text.
"""
