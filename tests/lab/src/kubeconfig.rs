//! Kubeconfig files, and clients made from them.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

/// How a client reaches the API server and as whom.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) server: String,
    /// For `https`; a proxy of the lab is plain `http`.
    pub(crate) ca_pem: Option<String>,
    pub(crate) token: String,
    pub(crate) namespace: String,
}

impl Access {
    fn kubeconfig(&self) -> Value {
        let mut cluster = json!({ "server": self.server });
        if let Some(pem) = &self.ca_pem {
            cluster["certificate-authority-data"] = base64(pem.as_bytes()).into();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "lab", "cluster": cluster }],
            "users": [{ "name": "lab", "user": { "token": self.token } }],
            "contexts": [{
                "name": "lab",
                "context": { "cluster": "lab", "user": "lab", "namespace": self.namespace },
            }],
            "current-context": "lab",
        })
    }

    /// Writes it as JSON, which every reader of YAML reads.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let text = format!("{:#}\n", self.kubeconfig());
        fs::write(file, text).with_context(|| format!("writing {}", file.display()))
    }

    /// A client. It belongs to the runtime that it is made on.
    pub(crate) async fn client(&self) -> Result<Client> {
        let kubeconfig: Kubeconfig = serde_json::from_value(self.kubeconfig())?;
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Client::try_from(config).context("making a client of the API server")
    }
}

/// Standard base64 with padding (RFC 4648, section 4), the form of data in a kubeconfig.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk
            .iter()
            .fold(0_u32, |word, &byte| word << 8 | u32::from(byte));
        let word = word << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place > chunk.len() {
                '='
            } else {
                char::from(digit)
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_the_vectors_of_rfc_4648() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
