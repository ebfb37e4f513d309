use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response};
use kube::client::Body;
use tower_test::mock::{self, Handle};

use super::*;
use crate::config::FrontProxyConfig;

type Api = Handle<Request<Body>, Response<Body>>;

fn authentication() -> AuthenticationConfig {
    AuthenticationConfig {
        kubeconfig: None,
        skip_lookup: true,
        tolerate_lookup_failure: false,
        token_ttl: Duration::from_secs(10),
        client_ca: None,
        front_proxy: FrontProxyConfig {
            ca: None,
            allowed_names: vec![],
            username_headers: vec!["x-remote-user".to_owned()],
            uid_headers: vec![],
            group_headers: vec!["x-remote-group".to_owned()],
            extra_prefixes: vec!["x-remote-extra-".to_owned()],
        },
    }
}

fn authorization() -> AuthorizationConfig {
    AuthorizationConfig {
        kubeconfig: None,
        always_allow: vec!["/healthz".to_owned(), "/open/*".to_owned()],
        granted_ttl: Duration::from_secs(10),
        denied_ttl: Duration::from_secs(10),
    }
}

async fn gate(config: AuthenticationConfig, delegates: Delegates) -> Gate {
    Gate::new(config, authorization(), delegates, Lookup::First)
        .await
        .unwrap()
}

fn delegated() -> (Delegates, Api) {
    let (service, handle) = mock::pair::<Request<Body>, Response<Body>>();
    let client = kube::Client::new(service, "default");
    let delegates = Delegates {
        authentication: Some(client.clone()),
        authorization: Some(client),
    };
    (delegates, handle)
}

fn token(text: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {text}")).unwrap();
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}

/// Expects one request whose path and body hold these texts, and answers it.
async fn answer(api: &mut Api, path: &str, body: &str, status: serde_json::Value) {
    let (request, reply_to) = api.next_request().await.expect("a request");
    assert!(request.uri().path().ends_with(path), "{}", request.uri());
    let sent = request.into_body().collect_bytes().await.unwrap();
    let sent = String::from_utf8_lossy(&sent).into_owned();
    assert!(sent.contains(body), "{body} is missing in {sent}");
    let reply = serde_json::json!({"metadata": {}, "spec": {}, "status": status});
    let reply = serde_json::to_vec(&reply).unwrap();
    reply_to.send_response(
        Response::builder()
            .status(201)
            .body(Body::from(reply))
            .unwrap(),
    );
}

#[tokio::test]
async fn without_credentials_or_clients_only_the_open_paths_are_served() {
    let gate = gate(authentication(), Delegates::default()).await;
    for (path, open) in [
        ("/healthz", true),
        ("/open/a", true),
        ("/healthz/ping", false),
        ("/metrics", false),
    ] {
        let admitted = gate.admit(&Method::GET, path, &HeaderMap::new(), &[]).await;
        assert_eq!(admitted.is_ok(), open, "{path}");
    }
    let denied = gate.admit(&Method::GET, "/metrics", &token("x"), &[]).await;
    assert!(matches!(denied, Err(Denial::Forbidden { user, .. }) if user == "system:anonymous"));
}

#[tokio::test(start_paused = true)]
async fn a_token_and_an_access_are_reviewed_once_in_ten_seconds() {
    let (delegates, mut api) = delegated();
    let gate = Arc::new(gate(authentication(), delegates).await);
    let cluster = tokio::spawn(async move {
        let user = serde_json::json!({"authenticated": true, "user": {"username": "prom", "groups": ["g"]}});
        for _ in 0..2 {
            answer(
                &mut api,
                "/tokenreviews",
                "\"token\":\"good\"",
                user.clone(),
            )
            .await;
            let asked = "\"path\":\"/metrics\",\"verb\":\"get\"";
            let allowed = serde_json::json!({"allowed": true});
            answer(&mut api, "/subjectaccessreviews", asked, allowed).await;
        }
    });
    for pause in [0, 9, 2] {
        crate::runtime::clock::sleep(Duration::from_secs(pause)).await;
        let headers = token("good");
        let admitted = gate.admit(&Method::GET, "/metrics", &headers, &[]).await;
        let identity = admitted.expect("the cluster allows it");
        assert_eq!(identity.user, "prom");
        assert_eq!(identity.groups, ["g", "system:authenticated"]);
    }
    cluster.await.unwrap();
}

#[tokio::test]
async fn a_bad_token_is_unauthorized_even_on_open_paths() {
    let (delegates, mut api) = delegated();
    let gate = gate(authentication(), delegates).await;
    let headers = token("bad");
    let status = serde_json::json!({"authenticated": false});
    let (admitted, ()) = tokio::join!(
        gate.admit(&Method::GET, "/healthz", &headers, &[]),
        answer(&mut api, "/tokenreviews", "bad", status),
    );
    assert_eq!(admitted, Err(Denial::Unauthorized));
}

#[tokio::test]
async fn a_denied_access_is_forbidden() {
    let (delegates, mut api) = delegated();
    let gate = gate(authentication(), delegates).await;
    let none = HeaderMap::new();
    let (admitted, ()) = tokio::join!(
        gate.admit(&Method::DELETE, "/metrics", &none, &[]),
        answer(
            &mut api,
            "/subjectaccessreviews",
            "\"verb\":\"delete\"",
            serde_json::json!({"allowed": false})
        ),
    );
    assert!(matches!(admitted, Err(Denial::Forbidden { .. })));
}

struct Ca {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    file: tempfile::NamedTempFile,
}

impl Ca {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), certificate.pem()).unwrap();
        Self {
            issuer: rcgen::Issuer::new(params, key),
            file,
        }
    }

    fn sign(&self, name: &str, organisation: &str) -> CertificateDer<'static> {
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        let names = &mut params.distinguished_name;
        names.push(rcgen::DnType::CommonName, name);
        names.push(rcgen::DnType::OrganizationName, organisation);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate().unwrap();
        params.signed_by(&key, &self.issuer).unwrap().der().clone()
    }
}

#[tokio::test]
async fn a_client_certificate_names_user_and_groups() {
    let (ca, stranger) = (Ca::new(), Ca::new());
    let mut config = authentication();
    config.client_ca = Some(ca.file.path().to_owned());
    let gate = gate(config, Delegates::default()).await;
    let none = HeaderMap::new();
    let ask = |leaf: CertificateDer<'static>| {
        let (gate, none) = (&gate, &none);
        async move { gate.admit(&Method::GET, "/metrics", none, &[leaf]).await }
    };
    let admin = ask(ca.sign("admin", "system:masters")).await.unwrap();
    assert_eq!(admin.user, "admin");
    let user = ask(ca.sign("user", "people")).await;
    assert!(matches!(user, Err(Denial::Forbidden { user, .. }) if user == "user"));
    let forged = ask(stranger.sign("admin", "system:masters")).await;
    assert_eq!(forged, Err(Denial::Unauthorized));
}

#[tokio::test]
async fn only_an_allowed_front_proxy_is_believed() {
    let ca = Ca::new();
    let mut config = authentication();
    config.front_proxy.ca = Some(ca.file.path().to_owned());
    config.front_proxy.allowed_names = vec!["front-proxy".to_owned()];
    let gate = gate(config, Delegates::default()).await;
    let mut headers = HeaderMap::new();
    headers.insert("x-remote-user", HeaderValue::from_static("alice"));
    headers.append("x-remote-group", HeaderValue::from_static("system:masters"));
    headers.insert("x-remote-extra-scope", HeaderValue::from_static("all"));
    let ask = |leaf: CertificateDer<'static>| {
        let (gate, headers) = (&gate, &headers);
        async move { gate.admit(&Method::GET, "/metrics", headers, &[leaf]).await }
    };
    let alice = ask(ca.sign("front-proxy", "x")).await.unwrap();
    assert_eq!(alice.user, "alice");
    assert_eq!(alice.extra.get("scope"), Some(&vec!["all".to_owned()]));
    assert_eq!(ask(ca.sign("other", "x")).await, Err(Denial::Unauthorized));
    let without = gate.admit(&Method::GET, "/metrics", &headers, &[]).await;
    assert!(matches!(without, Err(Denial::Forbidden { user, .. }) if user == "system:anonymous"));
}
