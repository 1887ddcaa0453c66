"""Where pods run: one `Cluster` protocol, and a room for each place (fake, local; Kubernetes joins them later)."""
