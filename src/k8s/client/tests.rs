use std::io::Write as _;

use k8s_openapi::api::core::v1::Service;
use kube::Api;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// Answers one request on a loopback port with `status` and hands out the request's head.
async fn serve_once(status: &'static str) -> (String, tokio::task::JoinHandle<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(head).unwrap()
    });
    (address, task)
}

#[tokio::test]
async fn a_plain_http_server_is_asked_with_our_user_agent_and_never_twice() {
    let (address, server) = serve_once("503 Service Unavailable").await;
    let source = ClientSource {
        master: Some(address),
        ..ClientSource::default()
    };
    let connection = connect(&source, "speaker").await.unwrap();
    assert_eq!(
        connection.api_server,
        ["127.0.0.1".parse::<IpAddr>().unwrap()]
    );
    let api: Api<Service> = Api::namespaced(connection.client, "a");
    let error = crate::k8s::within(Duration::from_secs(5), api.get("s"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), crate::k8s::Class::Retry { after: None });
    let head = server.await.unwrap();
    let agent = format!(
        "harvester-cloud-provider/{} (linux/",
        env!("CARGO_PKG_VERSION")
    );
    assert!(
        head.contains(&agent) && head.contains(") speaker\r\n"),
        "{head}"
    );
}

#[tokio::test]
async fn the_master_address_overrides_the_kubeconfigs_and_keeps_its_token() {
    let (address, server) = serve_once("200 OK").await;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(
        br#"{
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "http://[::1]:1"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}]
    }"#,
    )
    .unwrap();
    let source = ClientSource {
        kubeconfig: Some(file.path().to_owned()),
        master: Some(address),
        rate: Some(Rate {
            per_second: 20.0,
            burst: 30,
        }),
    };
    let connection = connect(&source, "x").await.unwrap();
    let api: Api<Service> = Api::namespaced(connection.client, "a");
    crate::k8s::within(Duration::from_secs(5), api.get("s"))
        .await
        .unwrap();
    assert!(
        server
            .await
            .unwrap()
            .to_lowercase()
            .contains("authorization: bearer secret")
    );

    let source = ClientSource {
        master: None,
        ..source
    };
    let connection = connect(&source, "x").await.unwrap();
    assert_eq!(connection.api_server, ["::1".parse::<IpAddr>().unwrap()]);
}

#[tokio::test]
async fn mistakes_in_the_source_are_named() {
    let broken = |master: &str| ClientSource {
        master: Some(master.to_owned()),
        ..ClientSource::default()
    };
    let error = connect(&broken("10.0.0.1:6443"), "x").await.unwrap_err();
    assert!(error.to_string().contains("10.0.0.1:6443"), "{error}");
    let missing = ClientSource {
        kubeconfig: Some("/nonexistent/kubeconfig".into()),
        ..ClientSource::default()
    };
    let error = connect(&missing, "x").await.unwrap_err();
    assert!(
        error.to_string().contains("/nonexistent/kubeconfig"),
        "{error}"
    );
}

#[test]
fn only_literal_addresses_are_known() {
    let known = |url: &str| literal_address(&url.parse().unwrap());
    assert_eq!(
        known("https://10.1.2.3:6443"),
        Some("10.1.2.3".parse().unwrap())
    );
    assert_eq!(known("https://[fd00::1]"), Some("fd00::1".parse().unwrap()));
    assert_eq!(known("https://kubernetes.default"), None);
}
