"""The elastic parameter server: table, kernels, server, client, copies and manifest.

It holds the exactly-once rules of docs/design.md on the server's side. No TensorFlow, no controller: a server obeys
orders that arrive by `wire` and can start in a fraction of a second.
"""
