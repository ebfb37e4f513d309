//! A cloud-config that changes under a running program.

use std::{fs, path::PathBuf};

use serde_json::json;

use super::*;

/// A cloud-config in a folder of its own.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder for the test"))
    }

    fn config(&self) -> PathBuf {
        self.0.path().join("kubeconfig")
    }

    fn write(&self, server: &str, namespace: Option<&str>) {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "h", "cluster": {
                "server": server, "insecure-skip-tls-verify": true,
            } }],
            "users": [{ "name": "h", "user": { "token": "t" } }],
            "contexts": [{ "name": "h", "context": {
                "cluster": "h", "user": "h", "namespace": namespace,
            } }],
            "current-context": "h",
        });
        fs::write(self.config(), config.to_string()).expect("writing works");
    }
}

/// A server that answers each request with its path, until it is dropped.
async fn server() -> (String, tokio::task::JoinSet<()>) {
    use axum::{Router, http::Uri};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port on loopback");
    let address = listener.local_addr().expect("it is bound");
    let answer = Router::new().fallback(async |uri: Uri| uri.path().to_owned());
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let _ = axum::serve(listener, answer).await;
    });
    (format!("http://{address}"), tasks)
}

async fn ask(host: &Host) -> Result<String, kube::Error> {
    let request = Request::get("/version")
        .body(Vec::new())
        .expect("it is valid");
    host.client().request_text(request).await
}

fn provider() {
    // Another test may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[tokio::test]
async fn the_client_follows_the_file_and_keeps_the_path_of_the_server() {
    provider();
    let folder = Folder::new();
    let (first, _first) = server().await;
    let (second, _second) = server().await;
    folder.write(&format!("{first}/k8s/clusters/c-1"), Some("vms"));
    let (host, mut reload) = connect(&folder.config()).await.expect("it is usable");
    assert_eq!(host.namespace(), "vms");
    assert_eq!(
        ask(&host).await.expect("an answer"),
        "/k8s/clusters/c-1/version"
    );

    folder.write(&format!("{second}/k8s/clusters/c-2"), Some("vms"));
    reload.look().await;
    assert_eq!(
        ask(&host).await.expect("an answer"),
        "/k8s/clusters/c-2/version"
    );
}

#[tokio::test]
async fn a_file_that_cannot_be_used_or_names_another_namespace_changes_nothing() {
    provider();
    let folder = Folder::new();
    let (server, _tasks) = server().await;
    folder.write(&server, Some("vms"));
    let (host, mut reload) = connect(&folder.config()).await.expect("it is usable");
    for text in ["", "{", "kind: Config"] {
        fs::write(folder.config(), text).expect("writing works");
        reload.look().await;
        assert_eq!(ask(&host).await.expect("an answer"), "/version");
    }
    folder.write("http://127.0.0.1:1", Some("others"));
    reload.look().await;
    assert_eq!(ask(&host).await.expect("an answer"), "/version");
}

#[tokio::test]
async fn without_a_namespace_it_is_default() {
    provider();
    let folder = Folder::new();
    for namespace in [None, Some("")] {
        folder.write("http://127.0.0.1:1", namespace);
        let (host, _) = connect(&folder.config()).await.expect("it is usable");
        assert_eq!(host.namespace(), "default");
    }
}

#[tokio::test]
async fn a_cloud_config_that_is_missing_or_broken_is_told_with_its_name() {
    let folder = Folder::new();
    for text in [None, Some("{"), Some("kind: Config")] {
        if let Some(text) = text {
            fs::write(folder.config(), text).expect("writing works");
        }
        let error = connect(&folder.config()).await.expect_err("it is unusable");
        assert!(error.to_string().contains("kubeconfig"), "{error}");
    }
}
