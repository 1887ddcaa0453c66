"""A whole cluster in one thread from a seed: time that jumps from event to event.

It will drive the real controller and optimizer against the fake cluster; what stands here now is the driven loop that
this rests on. Anything that can happen in it happens again from the same seed.
"""
