//! A whole guest cluster of real parts in network namespaces.

pub mod clock;
