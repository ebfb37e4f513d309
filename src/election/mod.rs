//! Leader election over `coordination.k8s.io/v1` Leases with client-go's algorithm.
