"""Which plan: candidates, their front, the choice and the guard that keeps the present plan unless change pays.

Pure functions over `domain` and `perf`; no clock, no cluster, no history store. A decision is a value with a reason in
words, so that it can be tested, logged and shown as it was made.
"""
