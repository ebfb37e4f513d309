//! Typed verbs on the guest cluster's API; no decisions.
