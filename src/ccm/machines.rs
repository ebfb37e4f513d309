//! The host's machines and instances as the watches show them, for the controllers of nodes.

use std::sync::Arc;

use crate::{
    ccm::{
        cache::{Cache, ObjectKey},
        instance::Machines,
    },
    harvester::kubevirt::{VirtualMachine, VirtualMachineInstance},
};

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct MachineView {
    namespace: Arc<str>,
    machines: Arc<Cache<VirtualMachine>>,
    instances: Arc<Cache<VirtualMachineInstance>>,
}

impl MachineView {
    pub fn new(
        namespace: &str,
        machines: Arc<Cache<VirtualMachine>>,
        instances: Arc<Cache<VirtualMachineInstance>>,
    ) -> Self {
        Self {
            namespace: namespace.into(),
            machines,
            instances,
        }
    }

    /// Both have been listed: what is missing does not exist, or did not a moment ago.
    pub fn is_synced(&self) -> bool {
        self.machines.status().synced && self.instances.status().synced
    }

    /// What the watch of machines shows is what is, and not what was when the host was last heard.
    pub fn is_current(&self) -> bool {
        let status = self.machines.status();
        status.synced && status.connected
    }

    pub fn instance(&self, name: &str) -> Option<Arc<VirtualMachineInstance>> {
        self.instances.get(&self.key(name))
    }

    pub fn instances(&self) -> Vec<Arc<VirtualMachineInstance>> {
        self.instances.all()
    }

    fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(&*self.namespace, name)
    }
}

impl Machines for MachineView {
    fn named(&self, name: &str) -> Option<Arc<VirtualMachine>> {
        self.machines.get(&self.key(name))
    }

    fn all(&self) -> Vec<Arc<VirtualMachine>> {
        self.machines.all()
    }
}
