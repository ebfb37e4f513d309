//! What kube-vip's own end-to-end suite asks of a speaker, by the numbers of the reference (7.3).
//!
//! 7 is about DHCP, 20 about the control plane's VIP.

mod basics;
mod leadership;
mod settings;
mod shared_lease;
mod shutdown;
mod variants;
