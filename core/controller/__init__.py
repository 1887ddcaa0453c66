"""One job's life: what pods should be, which batches are left, when a copy is committed, when the job has ended.

Its heart is pure (`step(state, reports, now) -> (state, actions)`); one thin driver owns threads, network and store. It
starts processes by command line and never imports TensorFlow or a user's code.
"""
