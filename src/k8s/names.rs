//! Names that others gave: labels, annotations, taints, finalizers.

/// `metadata.labels` of Nodes and Services.
pub mod label {
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
    pub const REGION: &str = "topology.kubernetes.io/region";
    pub const ZONE: &str = "topology.kubernetes.io/zone";
    /// The three above as they were called before; only cloud providers write them.
    pub const BETA_INSTANCE_TYPE: &str = "beta.kubernetes.io/instance-type";
    pub const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
    pub const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
    /// The name of an EndpointSlice's Service.
    pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
    /// A Node that must not serve load balancers.
    pub const EXCLUDE_FROM_LOAD_BALANCERS: &str =
        "node.kubernetes.io/exclude-from-external-load-balancers";
    /// Set by Helm and others: a Service whose proxying is somebody else's business.
    pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
}

/// Taints of Nodes.
pub mod taint {
    /// On a Node that waits for its cloud provider.
    pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
    /// On a Node whose machine is shut down.
    pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
    /// On a Node that the autoscaler is about to remove.
    pub const TO_BE_DELETED_BY_AUTOSCALER: &str = "ToBeDeletedByClusterAutoscaler";
}

/// Finalizers.
pub mod finalizer {
    /// On a Service with a load balancer to clean up.
    pub const LOAD_BALANCER_CLEANUP: &str = "service.kubernetes.io/load-balancer-cleanup";
}

/// kube-vip's annotations of Services, and the class it serves.
pub mod kube_vip {
    pub const CLASS: &str = "kube-vip.io/kube-vip-class";

    pub const ACTIVE_ENDPOINT: &str = "kube-vip.io/active-endpoint";
    pub const ACTIVE_ENDPOINT_IPV6: &str = "kube-vip.io/active-endpoint-ipv6";
    pub const ALLOW_RECONCILE_WITHOUT_ENDPOINTS: &str =
        "kube-vip.io/allow-reconcile-without-endpoints";
    pub const DDNS: &str = "kube-vip.io/ddns";
    pub const DHCP_BROADCAST: &str = "kube-vip.io/dhcp-broadcast";
    pub const EGRESS: &str = "kube-vip.io/egress";
    pub const EGRESS_ALLOWED_NETWORKS: &str = "kube-vip.io/egress-allowed-networks";
    pub const EGRESS_DENIED_NETWORKS: &str = "kube-vip.io/egress-denied-networks";
    pub const EGRESS_DESTINATION_PORTS: &str = "kube-vip.io/egress-destination-ports";
    pub const EGRESS_DETECT_API_SERVER: &str = "kube-vip.io/egress-detect-api-server";
    pub const EGRESS_INTERNAL: &str = "kube-vip.io/egress-internal";
    pub const EGRESS_IPV6: &str = "kube-vip.io/egress-ipv6";
    pub const EGRESS_NFTABLES_TABLE: &str = "kube-vip.io/egress-nftables-table";
    pub const EGRESS_NO_INTERNAL_TRAFFIC: &str = "kube-vip.io/egress-no-internal-traffic";
    pub const EGRESS_SOURCE_PORTS: &str = "kube-vip.io/egress-source-ports";
    pub const FLUSH_CONNTRACK: &str = "kube-vip.io/flush-conntrack";
    pub const FORCE_PER_SERVICE_ELECTION: &str = "kube-vip.io/forcePerServiceElection";
    pub const FORWARD_UPNP: &str = "kube-vip.io/forwardUPNP";
    pub const HWADDR: &str = "kube-vip.io/hwaddr";
    pub const IGNORE: &str = "kube-vip.io/ignore";
    pub const IGNORE_SERVICE_SECURITY: &str = "kube-vip.io/ignore-service-security";
    pub const LEASE_NAME: &str = "kube-vip.io/leaseName";
    pub const LOADBALANCER_HOSTNAME: &str = "kube-vip.io/loadbalancerHostname";
    pub const LOADBALANCER_IPS: &str = "kube-vip.io/loadbalancerIPs";
    pub const MACVLAN_NAME: &str = "kube-vip.io/macvlanName";
    pub const REQUESTED_IP: &str = "kube-vip.io/requestedIP";
    pub const RP_FILTER: &str = "kube-vip.io/rp_filter";
    pub const SERVICE_INTERFACE: &str = "kube-vip.io/serviceInterface";
    pub const SERVICE_VLAN: &str = "kube-vip.io/serviceVLAN";
    pub const UPNP_LEASE_DURATION: &str = "kube-vip.io/upnp-lease-duration";
    pub const VIP_HOST: &str = "kube-vip.io/vipHost";

    /// The per-Service Lease is this and the Service's name.
    pub const LEASE_PREFIX: &str = "kubevip-";
}

/// Harvester's annotations and labels.
pub mod harvester {
    /// Ours: a label selector of the Nodes that may announce the Service.
    pub const VIP_NODE_SELECTOR: &str = "cloudprovider.harvesterhci.io/vip-node-selector";
    /// Ours: overrides `--speaker-require-endpoints` for the Service.
    pub const VIP_REQUIRE_ENDPOINTS: &str = "cloudprovider.harvesterhci.io/vip-require-endpoints";

    pub const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
    pub const NETWORK: &str = "cloudprovider.harvesterhci.io/network";
    pub const PROJECT: &str = "cloudprovider.harvesterhci.io/project";
    pub const NAMESPACE: &str = "cloudprovider.harvesterhci.io/namespace";
    pub const PRIMARY_SERVICE: &str = "cloudprovider.harvesterhci.io/primary-service";
    pub const CLUSTER: &str = "cloudprovider.harvesterhci.io/cluster";
    pub const SERVICE_NAMESPACE: &str = "cloudprovider.harvesterhci.io/serviceNamespace";
    pub const SERVICE_NAME: &str = "cloudprovider.harvesterhci.io/serviceName";
    pub const MANAGEMENT_NETWORK: &str = "cloudprovider.harvesterhci.io/managementNetwork";
    pub const LB_NETWORK: &str = "cloudprovider.harvesterhci.io/lb-network";
    /// Ours, on LoadBalancer objects: which guest cluster created it, where names are ambiguous.
    pub const GUEST_CLUSTER_UID: &str = "cloudprovider.harvesterhci.io/guestClusterUID";
    pub const ADDITIONAL_INTERNAL_IPS: &str =
        "cloudprovider.harvesterhci.io/additional-internal-ips";
}

/// Annotations of the infrastructure cluster's LoadBalancer objects.
pub mod load_balancer {
    pub const CLUSTER: &str = "loadbalancer.harvesterhci.io/cluster";
    pub const NAMESPACE: &str = "loadbalancer.harvesterhci.io/namespace";
    pub const NETWORK: &str = "loadbalancer.harvesterhci.io/network";
    pub const PROJECT: &str = "loadbalancer.harvesterhci.io/project";
}

/// Annotations of Nodes.
pub mod annotation {
    /// Where a kubelet started with `--node-ip` says so.
    pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
}
