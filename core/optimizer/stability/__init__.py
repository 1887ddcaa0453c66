"""What is unstable about a running job and what to do about it: pure, from plain samples.

stragglers: slow workers. hot_ps: parameter servers that everybody waits for. memory: pods that will meet their limit.
"""
