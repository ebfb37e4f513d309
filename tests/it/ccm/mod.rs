//! The cloud controller manager on real API servers, that of the guest and that of the host.

mod admission_failures;
mod allocation_failures;
mod balancers;
mod leadership;
mod nodes;
mod observed;
mod outages;
mod stage;
mod vanished_objects;
