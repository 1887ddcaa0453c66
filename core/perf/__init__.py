"""What a plan will do: iteration time, throughput and memory, with ranges.

Pure functions over numbers from `domain`; fitting and predicting, never deciding. Training's own rooms (`ps`, `wire`,
`data`, `cluster`, `training`) must not import it: a job trains the same whatever is predicted of it.
"""
