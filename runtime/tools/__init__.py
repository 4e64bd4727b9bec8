"""Tools from functions: signature, schema, registry, dry run.

Read `tool` first.
"""
