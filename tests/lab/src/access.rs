//! Who may do what at the lab's API server.
//!
//! The administrator has a token from a file; everybody else is a service account with a token from the
//! API, as in life. A speaker may do exactly what the chart will grant it, so that a missing right shows
//! in the first scenario that needs it.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::clock;

const SPEAKER: &str = "lab:speaker";
const KUBE_PROXY: &str = "system:node-proxier";
const MANAGER: &str = "lab:cloud-controller-manager";
const MANAGER_OF_OLD: &str = "lab:cloud-controller-manager-of-old";
const SYSTEM: &str = "kube-system";
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// What a cloud controller manager may do in its guest cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// All that it can make use of.
    Full,
    /// Those that the chart of the Go program grants: no deletion of nodes, no watch over Leases.
    OfOld,
}

impl Rights {
    fn role(self) -> &'static str {
        match self {
            Self::Full => MANAGER,
            Self::OfOld => MANAGER_OF_OLD,
        }
    }
}

/// Tokens of a cluster's service accounts.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    pub(crate) speaker: String,
    pub(crate) kube_proxy: String,
}

/// Writes the token file of the API server; returns the administrator's token.
pub(crate) fn write_tokens(file: &Path) -> Result<String> {
    // Loopback is the machine's, so another user of it must not guess.
    let word = || clock::random_fraction().to_bits();
    let token = format!("lab-{:016x}{:016x}", word(), word());
    let line = format!("{token},lab-admin,lab-admin,\"system:masters\"\n");
    fs::write(file, line).with_context(|| format!("writing {}", file.display()))?;
    Ok(token)
}

/// What is the same for all clusters of a control plane.
pub(crate) async fn grant(client: &Client) -> Result<()> {
    let role = ClusterRole {
        metadata: named(SPEAKER),
        rules: Some(speaker_rules()),
        ..ClusterRole::default()
    };
    create(&Api::all(client.clone()), role).await
}

/// The roles of cloud controller managers, and an account for each.
pub(crate) async fn grant_managers(client: &Client) -> Result<()> {
    for (rights, rules) in [
        (Rights::Full, manager_rules()),
        (Rights::OfOld, manager_rules_of_old()),
    ] {
        let role = rights.role();
        let name = role.replace(':', "-");
        let cluster_role = ClusterRole {
            metadata: named(role),
            rules: Some(rules),
            ..ClusterRole::default()
        };
        let binding = ClusterRoleBinding {
            metadata: named(role),
            role_ref: role_ref("ClusterRole", role),
            subjects: Some(vec![account(&name, SYSTEM)]),
        };
        let service_account = ServiceAccount {
            metadata: named(&name),
            ..ServiceAccount::default()
        };
        create(&Api::all(client.clone()), cluster_role).await?;
        create(&Api::all(client.clone()), binding).await?;
        create(&Api::namespaced(client.clone(), SYSTEM), service_account).await?;
    }
    Ok(())
}

/// A token of the account with these rights.
pub(crate) async fn manager_token(client: &Client, rights: Rights) -> Result<String> {
    token(client, SYSTEM, &rights.role().replace(':', "-")).await
}

async fn token(client: &Client, namespace: &str, account: &str) -> Result<String> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let mut request = TokenRequest::default();
    request.spec.expiration_seconds = Some(TOKEN_SECONDS);
    let answer = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await;
    let answer = answer.with_context(|| format!("asking for a token of {account}"))?;
    Ok(answer.status.context("the answer has no token")?.token)
}

/// The accounts of one cluster in its release namespace, their rights and their tokens.
pub(crate) async fn accounts(client: &Client, cluster: &str, namespace: &str) -> Result<Tokens> {
    let secrets = Role {
        metadata: named(SPEAKER),
        rules: Some(vec![rule(
            "",
            &["secrets"],
            &["get", "list", "watch", "create", "update"],
        )]),
    };
    let may_use_secrets = RoleBinding {
        metadata: named(SPEAKER),
        role_ref: role_ref("Role", SPEAKER),
        subjects: Some(vec![account("speaker", namespace)]),
    };
    create(&Api::namespaced(client.clone(), namespace), secrets).await?;
    create(&Api::namespaced(client.clone(), namespace), may_use_secrets).await?;
    Ok(Tokens {
        speaker: bound_account(client, cluster, namespace, "speaker", SPEAKER).await?,
        kube_proxy: bound_account(client, cluster, namespace, "kube-proxy", KUBE_PROXY).await?,
    })
}

/// Gives the speaker's account of a cluster the rights of a cloud controller manager too.
pub(crate) async fn promote(client: &Client, cluster: &str, namespace: &str) -> Result<()> {
    grant_managers(client).await?;
    let binding = ClusterRoleBinding {
        metadata: named(&binding_name(cluster, "manager")),
        role_ref: role_ref("ClusterRole", MANAGER),
        subjects: Some(vec![account("speaker", namespace)]),
    };
    create(&Api::all(client.clone()), binding).await
}

/// Takes back the bindings of a cluster, which are in no namespace.
pub(crate) async fn withdraw(client: &Client, cluster: &str) -> Result<()> {
    let bindings = Api::<ClusterRoleBinding>::all(client.clone());
    for name in ["speaker", "kube-proxy", "manager"] {
        let binding = binding_name(cluster, name);
        match bindings.delete(&binding, &DeleteParams::default()).await {
            Err(error) if !is_absent(&error) => {
                return Err(error).with_context(|| format!("deleting {binding}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the API server says that an object does not exist.
pub(crate) fn is_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

async fn bound_account(
    client: &Client,
    cluster: &str,
    namespace: &str,
    name: &str,
    role: &str,
) -> Result<String> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    create(
        &accounts,
        ServiceAccount {
            metadata: named(name),
            ..ServiceAccount::default()
        },
    )
    .await?;
    let binding = ClusterRoleBinding {
        metadata: named(&binding_name(cluster, name)),
        role_ref: role_ref("ClusterRole", role),
        subjects: Some(vec![account(name, namespace)]),
    };
    create(&Api::all(client.clone()), binding).await?;
    token(client, namespace, name).await
}

pub(crate) async fn create<K>(api: &Api<K>, object: K) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let what = || {
        format!(
            "creating {} {}",
            K::kind(&()),
            object.meta().name.as_deref().unwrap_or("")
        )
    };
    api.create(&PostParams::default(), &object)
        .await
        .map(drop)
        .with_context(what)
}

fn speaker_rules() -> Vec<PolicyRule> {
    vec![
        rule("", &["services"], &["list", "watch", "patch"]),
        rule("", &["services/status"], &["patch"]),
        rule("", &["nodes"], &["list", "watch"]),
        rule("discovery.k8s.io", &["endpointslices"], &["list", "watch"]),
        rule(
            "coordination.k8s.io",
            &["leases"],
            &["get", "list", "watch", "create", "update", "delete"],
        ),
        rule("", &["events"], &["create", "patch"]),
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule(
            "authorization.k8s.io",
            &["subjectaccessreviews"],
            &["create"],
        ),
    ]
}

fn manager_rules() -> Vec<PolicyRule> {
    let watch = ["get", "list", "watch"];
    vec![
        rule("", &["services"], &[&watch[..], &["patch"]].concat()),
        rule("", &["services/status"], &["patch"]),
        rule(
            "",
            &["nodes"],
            &[&watch[..], &["update", "patch", "delete"]].concat(),
        ),
        rule("", &["nodes/status"], &["patch"]),
        rule("", &["events"], &["create", "patch"]),
        rule(
            "",
            &["configmaps"],
            &[&watch[..], &["create", "update"]].concat(),
        ),
        rule(
            "coordination.k8s.io",
            &["leases"],
            &[&watch[..], &["create", "update"]].concat(),
        ),
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule(
            "authorization.k8s.io",
            &["subjectaccessreviews"],
            &["create"],
        ),
    ]
}

fn manager_rules_of_old() -> Vec<PolicyRule> {
    let most = ["get", "list", "watch", "create", "update"];
    vec![
        rule(
            "",
            &["services", "nodes", "events"],
            &[&most[..], &["patch"]].concat(),
        ),
        rule(
            "",
            &["nodes/status", "services/status"],
            &["update", "patch"],
        ),
        rule("", &["configmaps"], &most),
        rule(
            "coordination.k8s.io",
            &["leases"],
            &["get", "create", "update"],
        ),
    ]
}

pub(crate) fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

pub(crate) fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

fn binding_name(cluster: &str, account: &str) -> String {
    format!("lab:{cluster}:{account}")
}

pub(crate) fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: "rbac.authorization.k8s.io".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

pub(crate) fn account(name: &str, namespace: &str) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: name.to_owned(),
        namespace: Some(namespace.to_owned()),
        ..Subject::default()
    }
}
