//! A network: a learning bridge in the run's switch namespace.

use std::{path::Path, sync::Arc};

use anyhow::Result;

use crate::{iproute, probe::Capture, run::Run};

/// A layer-2 network that hosts connect to.
#[derive(Debug, Clone)]
pub struct Network {
    run: Arc<Run>,
    name: String,
    bridge: String,
    number: u8,
}

impl Network {
    pub(crate) fn create(run: Arc<Run>, name: &str) -> Result<Self> {
        let number = run.number_network();
        // Link names have at most 15 characters, names of networks may have more.
        let bridge = format!("br{number}");
        // No delay before a port forwards; and no snooping, which without a querier would keep
        // neighbour solicitations from their groups.
        iproute::ip(
            Some(run.switch()),
            &format!(
                "link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
                 link set {bridge} up\n"
            ),
        )?;
        Ok(Self {
            run,
            name: name.to_owned(),
            bridge,
            number,
        })
    }

    /// The network's name in the scenario.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Captures every frame that the bridge forwards.
    pub fn capture(&self, file: &Path) -> Result<Capture> {
        Capture::start(self.run.switch(), &self.bridge, file)
    }

    pub(crate) fn bridge(&self) -> &str {
        &self.bridge
    }

    pub(crate) fn number(&self) -> u8 {
        self.number
    }
}
