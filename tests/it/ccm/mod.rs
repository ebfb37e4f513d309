//! The cloud controller manager on real API servers, that of the guest and that of the host.

mod balancers;
mod crowds;
mod leadership;
mod nodes;
mod stage;
mod steady_state;
