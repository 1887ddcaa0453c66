"""Many jobs on one capacity: who may use which share of it, and why.

It sees jobs from outside (what they use, what more would bring) and never reaches into one: each job keeps its own
controller. What stands here now is the contract that the allocation will keep.
"""
