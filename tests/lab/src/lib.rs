//! A whole guest cluster of real parts in network namespaces.

mod access;
pub mod api_proxy;
mod claim;
pub mod clock;
pub mod cluster;
mod companion;
pub mod control_plane;
mod delay;
mod frame;
pub mod guest;
pub mod harvester;
pub mod host;
pub mod http_client;
mod iproute;
mod kubeconfig;
pub mod mac;
mod namespace;
pub mod network;
mod pki;
pub mod port;
pub mod probe;
pub mod process;
mod rules;
pub mod run;
pub mod standing;
mod sweep;
mod syscall;
pub mod tools;
pub mod wait;

pub use crate::{
    access::Rights,
    api_proxy::{ApiProxy, Counts, Failure},
    cluster::{Cluster, Node, SpeakerSetup},
    companion::Companion,
    control_plane::{ControlPlane, Settings},
    guest::{Guest, Manager, ManagerSetup},
    harvester::HarvesterHost,
    host::Host,
    iproute::unavailable,
    mac::MacAddress,
    network::Network,
    port::Port,
    process::Process,
    rules::{Direction, Traffic},
    run::Lab,
    wait::poll_until,
};
