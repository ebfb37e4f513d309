//! The flags of the cloud-controller-manager framework that this program acts on, with the defaults
//! of the Go program and Harvester's presets.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::Args;

use crate::config::duration;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Generic flags")]
pub(in crate::config) struct GenericFlags {
    /// The provider for cloud services; this program is the provider `harvester`
    #[arg(long, default_value = "harvester")]
    pub cloud_provider: String,
    /// Kubeconfig of the Harvester cluster; its context's namespace is where the VMs are
    #[arg(long)]
    pub cloud_config: Option<PathBuf>,
    /// Name of this guest cluster in load balancer names and labels
    #[arg(long, default_value = "kubernetes")]
    pub cluster_name: String,
    /// Controllers to run: `*` is all, `name` switches on, `-name` off, `-*` alone means none at all
    #[arg(long, value_delimiter = ',', default_value = "*")]
    pub controllers: Vec<String>,
    /// Pause between the starts of two controllers
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    pub controller_start_interval: Duration,
    /// Objects are looked at again once in a period between this and twice this
    #[arg(long, default_value = "12h0m0s", value_parser = duration::parse)]
    pub min_resync_period: Duration,
    /// Requests per second to the API server; limits only when given
    #[arg(long, default_value = "20")]
    pub kube_api_qps: f32,
    /// Burst of requests to the API server; limits only when given
    #[arg(long, default_value = "30")]
    pub kube_api_burst: i32,
    /// Use a service account of its own for each controller
    #[arg(long, default_value = "false")]
    pub use_service_account_credentials: bool,
    /// How often the states of nodes are compared with their machines
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    pub node_monitor_period: Duration,
    /// Feature gates `Name=true|false`; unknown ones are reported and ignored
    #[arg(long, value_delimiter = ',')]
    pub feature_gates: Vec<String>,
    /// Run controllers on one elected replica only
    #[arg(long, default_value = "true")]
    pub leader_elect: bool,
    /// How long a non-leader waits after the last renewal that it saw
    #[arg(long, default_value = "15s", value_parser = duration::parse)]
    pub leader_elect_lease_duration: Duration,
    /// How long a leader tries to renew before it gives up
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub leader_elect_renew_deadline: Duration,
    /// Pause between two tries
    #[arg(long, default_value = "2s", value_parser = duration::parse)]
    pub leader_elect_retry_period: Duration,
    /// The kind of object that is the lock
    #[arg(long, default_value = "leases")]
    pub leader_elect_resource_lock: String,
    #[arg(long, default_value = "cloud-controller-manager")]
    pub leader_elect_resource_name: String,
    #[arg(long, default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
}

#[expect(clippy::struct_field_names, reason = "fields are named as their flags")]
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Controller flags")]
pub(in crate::config) struct ControllerFlags {
    /// Workers of the node controller; limits only when given
    #[arg(long, default_value = "1")]
    pub concurrent_node_syncs: i32,
    /// Workers that refresh node addresses; 0 is as many as --concurrent-node-syncs
    #[arg(long, default_value = "0")]
    pub concurrent_node_status_updates: i32,
    /// Workers of the service controller; limits only when given
    #[arg(long, default_value = "1")]
    pub concurrent_service_syncs: i32,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Misc flags")]
pub(in crate::config) struct MiscFlags {
    /// Kubeconfig of this guest cluster; without it the pod's service account
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server, instead of the kubeconfig's
    #[arg(long)]
    pub master: Option<String>,
    /// How often node addresses are refreshed
    #[arg(long, default_value = "5m0s", value_parser = duration::parse)]
    pub node_status_update_frequency: Duration,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Secure serving flags")]
pub(in crate::config) struct ServingFlags {
    /// Address to serve on; 0.0.0.0 and :: are all addresses of both families
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// HTTPS port of health checks and metrics; 0 serves nothing (default 10258, or 0 with --controllers=-*)
    #[arg(long)]
    pub secure_port: Option<u16>,
    /// Folder of cloud-controller-manager.crt and .key, made there if missing
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    /// Serving certificate with its chain (PEM); read again when it changes
    #[arg(long)]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of --tls-cert-file
    #[arg(long)]
    pub tls_private_key_file: Option<PathBuf>,
    /// Further certificates by server name: `cert,key` or `cert,key:name,*.name` (repeatable)
    #[arg(long)]
    pub tls_sni_cert_key: Vec<String>,
    /// Cipher suites of TLS 1.2, by IANA name
    #[arg(long, value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// `VersionTLS12` (also for older ones) or `VersionTLS13`
    #[arg(long)]
    pub tls_min_version: Option<String>,
    /// Key exchange groups by number: 23, 24, 29
    #[arg(long, value_delimiter = ',')]
    pub tls_curve_preferences: Vec<u16>,
    /// Let other processes listen on the same port
    #[arg(long, default_value = "false")]
    pub permit_port_sharing: bool,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Authentication flags")]
pub(in crate::config) struct AuthenticationFlags {
    /// Kubeconfig of the cluster that reviews tokens; without it the pod's service account
    #[arg(long)]
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Do not read certificate authorities from the cluster
    #[arg(long, default_value = "true")]
    pub authentication_skip_lookup: bool,
    /// Go on if they cannot be read
    #[arg(long, default_value = "false")]
    pub authentication_tolerate_lookup_failure: bool,
    /// How long the review of a token counts
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// Authority of client certificates (PEM)
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// Authority of front proxies' certificates (PEM)
    #[arg(long)]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names of front proxies; empty allows all that the authority signed
    #[arg(long, value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    #[arg(long, value_delimiter = ',', default_value = "x-remote-user")]
    pub requestheader_username_headers: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    #[arg(long, value_delimiter = ',', default_value = "x-remote-group")]
    pub requestheader_group_headers: Vec<String>,
    #[arg(long, value_delimiter = ',', default_value = "x-remote-extra-")]
    pub requestheader_extra_headers_prefix: Vec<String>,
}

#[expect(clippy::struct_field_names, reason = "fields are named as their flags")]
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Authorization flags")]
pub(in crate::config) struct AuthorizationFlags {
    /// Kubeconfig of the cluster that reviews access; without it the pod's service account
    #[arg(long)]
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Paths open to everybody; a trailing * is a prefix
    #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
    pub authorization_always_allow_paths: Vec<String>,
    /// How long a granted access counts
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long a denied access counts
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logging flags")]
pub(in crate::config) struct LoggingFlags {
    /// Verbosity: 0 life cycle, 2 decisions, 4 debug, 6 trace, 8 with the HTTP client
    #[arg(short = 'v', long = "v", default_value = "0")]
    pub v: i32,
    /// Accepted for compatibility
    #[arg(long, value_delimiter = ',')]
    pub vmodule: Vec<String>,
    /// text or json
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    pub logging_format: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Harvester flags")]
pub(in crate::config) struct HarvesterFlags {
    /// Network attachment `[namespace/]name` of the cluster's management traffic
    #[arg(long)]
    pub management_network: Option<String>,
    /// Which addresses are internal ones: at most an IPv4 and an IPv6 prefix
    #[arg(long, default_value = "")]
    pub node_ip_cidr: String,
    /// Ranges of external addresses that are not reported
    #[arg(long, value_delimiter = ',')]
    pub node_exclude_ip_ranges: Vec<String>,
    /// Ignore the address annotations of nodes
    #[arg(long, default_value = "false")]
    pub disable_annotation_alpha_provided_ip_addr: bool,
    /// Do not follow the VMs' topology and networks
    #[arg(long, default_value = "false")]
    pub disable_vmi_controller: bool,
    /// Print this help when the start is refused
    #[arg(long, default_value = "false")]
    pub show_full_help_on_error: bool,
}
