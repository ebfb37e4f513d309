//! Writes to `ConfigMaps`. The right to patch them is not given, so a change is a read and a PUT.

use std::time::Duration;

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};

use super::{Class, Error, within};

const DEADLINE: Duration = Duration::from_secs(5);
const TRIES: u32 = 4;

/// Makes one key of a `ConfigMap` have this value; the others stay. Says whether it had to.
pub async fn ensure_key(
    client: &Client,
    namespace: &str,
    name: &str,
    key: &str,
    value: &str,
) -> Result<bool, Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let params = PostParams::default();
    let mut attempt = 1;
    loop {
        let error = match within(DEADLINE, api.get_opt(name)).await? {
            None => {
                let map = with_key(new(name), key, value);
                within(DEADLINE, api.create(&params, &map)).await.err()
            }
            Some(map) if has(&map, key, value) => return Ok(false),
            Some(map) => {
                let map = with_key(map, key, value);
                within(DEADLINE, api.replace(name, &params, &map))
                    .await
                    .err()
            }
        };
        let Some(error) = error else {
            return Ok(true);
        };
        match error.class() {
            // Somebody else was faster: look again.
            Class::Conflict | Class::AlreadyExists | Class::NotFound if attempt < TRIES => {
                attempt += 1;
            }
            _ => return Err(error),
        }
    }
}

/// Whether the key has this very value.
pub fn has(map: &ConfigMap, key: &str, value: &str) -> bool {
    let data = map.data.as_ref();
    data.and_then(|data| data.get(key))
        .is_some_and(|found| found == value)
}

fn new(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

fn with_key(mut map: ConfigMap, key: &str, value: &str) -> ConfigMap {
    let data = map.data.get_or_insert_default();
    data.insert(key.to_owned(), value.to_owned());
    map
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::k8s::dialogue;

    fn map(version: &str, data: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "m", "namespace": "ns", "resourceVersion": version},
            "data": data,
        })
    }

    #[tokio::test]
    async fn a_missing_map_is_made() {
        let (client, mut server) = dialogue::pair();
        let answers = async {
            server.next().await.fail(404, "NotFound");
            let call = server.next().await;
            assert_eq!(call.method, "POST");
            assert_eq!(call.body["data"], json!({"k": ""}));
            call.ok(&map("1", &json!({"k": ""})));
        };
        let (written, ()) = tokio::join!(ensure_key(&client, "ns", "m", "k", ""), answers);
        assert!(written.unwrap());
    }

    #[tokio::test]
    async fn a_change_keeps_other_keys_and_survives_a_conflict() {
        let (client, mut server) = dialogue::pair();
        let answers = async {
            server
                .next()
                .await
                .ok(&map("1", &json!({"k": "a", "x": "y"})));
            server.next().await.fail(409, "Conflict");
            server
                .next()
                .await
                .ok(&map("2", &json!({"k": "a", "x": "z"})));
            let call = server.next().await;
            assert_eq!(call.method, "PUT");
            assert_eq!(call.body["metadata"]["resourceVersion"], "2");
            assert_eq!(call.body["data"], json!({"k": "b", "x": "z"}));
            call.ok(&map("3", &json!({"k": "b", "x": "z"})));
        };
        let (written, ()) = tokio::join!(ensure_key(&client, "ns", "m", "k", "b"), answers);
        assert!(written.unwrap());
    }

    #[tokio::test]
    async fn a_map_that_is_right_is_not_written() {
        let (client, mut server) = dialogue::pair();
        let answers = async { server.next().await.ok(&map("1", &json!({"k": "b"}))) };
        let (written, ()) = tokio::join!(ensure_key(&client, "ns", "m", "k", "b"), answers);
        assert!(!written.unwrap());
    }
}
