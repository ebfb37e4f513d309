//! The variants in which each behaviour is asked for: address families × traffic policy.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use lab::cluster::Service;

use crate::support::Stage;

/// One Service of each variant, all for the Pods of `app`.
pub(super) struct Variants(pub(super) Vec<Variant>);

/// A Service and its VIPs.
pub(super) struct Variant {
    pub(super) service: Service,
    pub(super) vips: Vec<IpAddr>,
}

impl Variants {
    /// IPv4, IPv6, and both with either first; each with `Cluster` and, if wanted, with `Local`.
    pub(super) async fn create(stage: &Stage, app: &str, local: bool) -> Result<Self> {
        let mut variants = Vec::new();
        for (policy, from) in [("cluster", 0), ("local", 10)] {
            if policy == "local" && !local {
                continue;
            }
            let vip = |number: u8| stage.pair(from + number);
            let ([v4, _], [_, v6]) = (vip(0), vip(1));
            let ([four, six], [second4, second6]) = (vip(2), vip(3));
            for (name, vips) in [
                ("v4", vec![v4]),
                ("v6", vec![v6]),
                ("v4v6", vec![four, six]),
                ("v6v4", vec![second6, second4]),
            ] {
                let mut builder = stage
                    .service(&format!("{policy}-{name}"), &vips)
                    .selects(app);
                if policy == "local" {
                    builder = builder.etp_local();
                }
                let service = builder.create().await?;
                variants.push(Variant { service, vips });
            }
        }
        Ok(Self(variants))
    }

    /// The addresses of all of them.
    pub(super) fn vips(&self) -> Vec<IpAddr> {
        self.0.iter().flat_map(|it| it.vips.clone()).collect()
    }

    /// Each is on one node, which its Lease and its status name, and answers.
    pub(super) async fn are_served(&self, stage: &Stage) -> Result<()> {
        for variant in &self.0 {
            let owner = stage.owner_of(&variant.vips).await?;
            stage.holder(&variant.lease(), owner).await?;
            variant.is_served_by(stage, owner).await?;
        }
        Ok(())
    }

    /// All are on one node, and answer.
    pub(super) async fn are_served_by(&self, stage: &Stage, owner: usize) -> Result<()> {
        for variant in &self.0 {
            variant.is_served_by(stage, owner).await?;
        }
        Ok(())
    }
}

impl Variant {
    /// The Lease that elects this Service's owner.
    pub(super) fn lease(&self) -> String {
        format!("kubevip-{}", self.service.name())
    }

    pub(super) fn is_local(&self) -> bool {
        self.service.name().starts_with("local")
    }

    pub(super) async fn is_served_by(&self, stage: &Stage, owner: usize) -> Result<()> {
        stage.owned_by(&self.vips, owner).await?;
        stage.says(&self.service, &self.vips, owner).await?;
        for vip in &self.vips {
            let answer = stage.ask(*vip).await?;
            ensure!(
                !self.is_local() || answer.node == stage.node(owner).name(),
                "{vip}: {answer:?}"
            );
        }
        Ok(())
    }
}
