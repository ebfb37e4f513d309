//! Keys, values and names by which the parts of a Harvester host know each other.

pub(super) const NETWORK: &str = "loadbalancer.harvesterhci.io/network";
pub(super) const NAMESPACE: &str = "loadbalancer.harvesterhci.io/namespace";
pub(super) const PROJECT: &str = "loadbalancer.harvesterhci.io/project";
pub(super) const CLUSTER: &str = "loadbalancer.harvesterhci.io/cluster";
pub(super) const MANAGEMENT_NETWORK: &str = "cloudprovider.harvesterhci.io/managementNetwork";
/// The label that says whose a LoadBalancer is.
pub(super) const OWNER: &str = "cloudprovider.harvesterhci.io/cluster";
pub(super) const GLOBAL_POOL: &str = "loadbalancer.harvesterhci.io/global-ip-pool";
pub(super) const POOL_VLAN: &str = "loadbalancer.harvesterhci.io/vid";
pub(super) const MANUAL_RELEASE: &str = "loadbalancer.harvesterhci.io/manuallyReleaseIP";

pub(super) const CREATOR: &str = "harvesterhci.io/creator";
pub(super) const NODE_DRIVER: &str = "docker-machine-driver-harvester";
pub(super) const GUEST_CLUSTER: &str = "guestcluster.harvesterhci.io/name";
pub(super) const VM_NAME: &str = "harvesterhci.io/vmName";
pub(super) const BEING_REMOVED: &str = "harvesterhci.io/removeAllPersistentVolumeClaims";
pub(super) const PROJECT_OF_NAMESPACE: &str = "field.cattle.io/projectId";
pub(super) const REGION: &str = "topology.kubernetes.io/region";
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

pub(super) const BALANCER_FINALIZER: &str = "wrangler.cattle.io/harvester-lb-controller";
pub(super) const MACHINE_FINALIZER: &str = "wrangler.cattle.io/harvester-lb-vm-controller";

pub(super) const MUTATOR: &str = "mutator.harvester-system.harvester-load-balancer-webhook";
pub(super) const VALIDATOR: &str = "validator.harvester-system.harvester-load-balancer-webhook";

/// The lab's own: which scenario a pool, being in no namespace, belongs to.
pub(super) const SCENARIO: &str = "lab.test/scenario";
