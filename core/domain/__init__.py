"""The words that every room shares: quantities, plans, limits, jobs, interval sets, model tables, records.

Immutable values with their own checks, and nothing that touches a file, a clock or a network; so any room, test or
notebook may import it. It knows `errors` only.
"""
