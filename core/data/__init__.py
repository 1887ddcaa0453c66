"""Rows: reading any input once into a memory-mapped dataset, and turning a batch number into rows.

It knows files, columns and the seeded shuffle; it does not know models, parameter servers or TensorFlow, and nothing
here parses text while training runs.
"""
