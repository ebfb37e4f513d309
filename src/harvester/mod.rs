//! The infrastructure cluster: where the VMs of the guest's nodes and its LoadBalancer objects are.

pub mod loadbalancer;

use kube::Client;

/// The connection to the infrastructure cluster: one client whose credentials and server follow the
/// cloud-config file, and the namespace that everything of this guest cluster is in.
#[derive(Clone)]
pub struct Host {
    client: Client,
    namespace: String,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Host {
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Of the VMs, the VMIs and the LoadBalancer objects.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}
