//! The cloud controller manager on real API servers, that of the guest and that of the host.

mod address_changes;
mod balancers;
mod clusters;
mod conflicts;
mod deletions;
mod leadership;
mod nodes;
mod pools;
mod rights;
mod stage;
mod watches;
