"""What one turn goes through outside the core: request, middleware, policy, validation, results.

Read `protocols` first.
"""
