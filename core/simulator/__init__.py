"""A whole cluster in one thread from a seed: time that jumps from event to event.

Faults that need hours, many machines and bad luck are found here by the thousand: the product's own `step` runs against
the fake cluster, simulated workers and parameter servers, wires that lose and double, and a store that fails, and what
must hold is looked at after every step. Anything that happens in it happens again from the same seed.
"""
