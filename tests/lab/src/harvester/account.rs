//! A guest cluster's account on its host: rights in one namespace, a token, and files that carry it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest},
    core::v1::{Secret, ServiceAccount},
    rbac::v1::{PolicyRule, Role, RoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};

use crate::{
    access::{self, rule},
    api_proxy::ApiProxy,
    kubeconfig::Access,
    run::lock,
};

const ROLE: &str = "harvesterhci.io:cloudprovider";
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// A guest's way to its host, with faults at will, and the file that says where it is. The way ends when
/// dropped.
#[derive(Debug)]
pub struct GuestAccess {
    pub(super) api: ApiProxy,
    pub(super) cloud_config: PathBuf,
}

impl GuestAccess {
    /// Faults and counts of this way.
    pub fn api(&self) -> &ApiProxy {
        &self.api
    }

    /// The kubeconfig; [`HarvesterHost::rotate_token`](super::HarvesterHost::rotate_token) rewrites it.
    pub fn cloud_config(&self) -> &Path {
        &self.cloud_config
    }
}

/// The account, and every file written for it.
#[derive(Debug)]
pub(super) struct Account {
    name: String,
    namespace: String,
    /// The number of the token in force.
    issued: AtomicU32,
    current: Mutex<String>,
    files: Mutex<Vec<(PathBuf, String)>>,
}

impl Account {
    /// Makes it, as the host's kubeconfig API does: named like the cluster, bound in one namespace.
    pub(super) async fn create(kube: &Client, namespace: &str, cluster: &str) -> Result<Self> {
        let accounts = Api::<ServiceAccount>::namespaced(kube.clone(), namespace);
        let account = ServiceAccount {
            metadata: access::named(cluster),
            ..ServiceAccount::default()
        };
        access::create(&accounts, account).await?;
        let role = Role {
            metadata: access::named(ROLE),
            rules: Some(rights(true)),
        };
        access::create(&Api::namespaced(kube.clone(), namespace), role).await?;
        let binding = RoleBinding {
            metadata: access::named(ROLE),
            role_ref: access::role_ref("Role", ROLE),
            subjects: Some(vec![access::account(cluster, namespace)]),
        };
        access::create(&Api::namespaced(kube.clone(), namespace), binding).await?;
        let account = Self {
            name: cluster.to_owned(),
            namespace: namespace.to_owned(),
            issued: AtomicU32::new(0),
            current: Mutex::default(),
            files: Mutex::default(),
        };
        account.issue(kube).await?;
        Ok(account)
    }

    pub(super) fn token(&self) -> String {
        lock(&self.current).clone()
    }

    /// Gives the account the right to ask guest agents, or takes it.
    pub(super) async fn allow_guest_agents(&self, kube: &Client, allowed: bool) -> Result<()> {
        let roles = Api::<Role>::namespaced(kube.clone(), &self.namespace);
        let mut role = roles.get(ROLE).await.context("reading the guest's role")?;
        role.rules = Some(rights(allowed));
        let replaced = roles.replace(ROLE, &PostParams::default(), &role).await;
        replaced.map(drop).context("changing the guest's role")
    }

    /// Makes a new token, writes it into every file, and withdraws the old one.
    pub(super) async fn rotate(&self, kube: &Client) -> Result<()> {
        let old = self.issued.load(Ordering::Relaxed);
        self.issue(kube).await?;
        for (file, server) in &*lock(&self.files) {
            self.write(file, server)?;
        }
        self.withdraw(kube, old).await
    }

    /// Withdraws the token in force.
    pub(super) async fn revoke(&self, kube: &Client) -> Result<()> {
        self.withdraw(kube, self.issued.load(Ordering::Relaxed))
            .await
    }

    pub(super) fn add_file(&self, file: &Path, server: &str) -> Result<()> {
        self.write(file, server)?;
        lock(&self.files).push((file.to_owned(), server.to_owned()));
        Ok(())
    }

    /// A token is good as long as its Secret exists.
    async fn issue(&self, kube: &Client) -> Result<()> {
        let number = self.issued.fetch_add(1, Ordering::Relaxed) + 1;
        let secrets = Api::<Secret>::namespaced(kube.clone(), &self.namespace);
        let secret = Secret {
            metadata: access::named(&self.secret(number)),
            ..Secret::default()
        };
        let secret = secrets.create(&PostParams::default(), &secret).await;
        let secret = secret.context("creating the Secret of a token")?;
        let mut request = TokenRequest::default();
        request.spec.expiration_seconds = Some(TOKEN_SECONDS);
        request.spec.bound_object_ref = Some(BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            name: secret.metadata.name,
            uid: secret.metadata.uid,
        });
        let accounts = Api::<ServiceAccount>::namespaced(kube.clone(), &self.namespace);
        let parameters = PostParams::default();
        let answer = accounts.create_token_request(&self.name, &parameters, &request);
        let answer = answer.await.context("asking for a guest's token")?;
        let token = answer.status.context("the answer has no token")?.token;
        *lock(&self.current) = token;
        Ok(())
    }

    async fn withdraw(&self, kube: &Client, number: u32) -> Result<()> {
        let secrets = Api::<Secret>::namespaced(kube.clone(), &self.namespace);
        let name = self.secret(number);
        match secrets.delete(&name, &DeleteParams::default()).await {
            Err(error) if !access::is_absent(&error) => {
                Err(error).context("withdrawing a guest's token")
            }
            _ => Ok(()),
        }
    }

    fn secret(&self, number: u32) -> String {
        format!("{}-token-{number}", self.name)
    }

    /// Whole or not at all, as a mounted Secret changes.
    fn write(&self, file: &Path, server: &str) -> Result<()> {
        let access = Access {
            server: server.to_owned(),
            ca_pem: None,
            token: self.token(),
            namespace: self.namespace.clone(),
        };
        let partial = file.with_extension("partial");
        access.write(&partial)?;
        fs::rename(&partial, file).with_context(|| format!("publishing {}", file.display()))
    }
}

/// What the host grants to a guest cluster.
fn rights(guest_agents: bool) -> Vec<PolicyRule> {
    let (read, all) = (["get", "list", "watch"], ["*"]);
    let mut subresources = vec![
        "virtualmachines/addvolume",
        "virtualmachines/removevolume",
        "virtualmachineinstances/addvolume",
        "virtualmachineinstances/removevolume",
    ];
    if guest_agents {
        subresources.push("virtualmachineinstances/guestosinfo");
    }
    vec![
        rule(
            "loadbalancer.harvesterhci.io",
            &["loadbalancers"],
            &["get", "list", "watch", "update", "create", "delete"],
        ),
        rule(
            "kubevirt.io",
            &["virtualmachines", "virtualmachineinstances"],
            &read,
        ),
        rule(
            "subresources.kubevirt.io",
            &subresources,
            &["get", "update"],
        ),
        rule("", &["pods"], &read),
        rule(
            "",
            &["persistentvolumeclaims", "persistentvolumeclaims/status"],
            &all,
        ),
    ]
}
