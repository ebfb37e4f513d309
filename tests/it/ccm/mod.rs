//! The cloud controller manager on real API servers, that of the guest and that of the host.

mod address_changes;
mod admission_failures;
mod allocation_failures;
mod balancers;
mod clusters;
mod conflicts;
mod crowds;
mod deletions;
mod leadership;
mod nodes;
mod observed;
mod outages;
mod pools;
mod rights;
mod stage;
mod steady_state;
mod vanished_objects;
mod watches;
