//! Every input of the speaker's model.

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};

use super::{announcer::AnnouncerEvent, selection::ServiceKey};
use crate::{
    election::Notice,
    k8s, net,
    net::link::{AddressKey, LinkEvent},
    runtime::informer::Delta,
};

/// What happened.
#[derive(Debug)]
pub enum Event {
    Service(Delta<Service>),
    Slice(Delta<EndpointSlice>),
    Node(Delta<Node>),
    Link(LinkEvent),
    Election(Notice),
    Announcer(AnnouncerEvent),
    Outcome(Outcome),
}

/// How an action ended.
#[derive(Debug)]
pub enum Outcome {
    /// Addresses put on a link, or their lifetimes renewed.
    Added(Vec<(AddressKey, Result<(), net::netlink::Error>)>),
    Removed(Vec<(AddressKey, Result<(), net::netlink::Error>)>),
    /// Status and annotations of a Service written.
    Written {
        service: ServiceKey,
        /// Of the object that was meant; there may be another by that name now.
        uid: String,
        result: Result<(), k8s::Error>,
    },
}
