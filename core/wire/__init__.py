"""How processes of one job talk: control over gRPC, data over persistent sockets with flat frames.

It owns authentication, bounds and deadlines, and is the one room that imports gRPC or sockets. It knows the messages,
not what they are for: no tables, no ledger, no TensorFlow.
"""
