//! Names that at most one process of the machine holds.
//!
//! A claim is an abstract Unix socket: it is on no disk, and the kernel gives it up however its process
//! ends.

use std::{
    io::ErrorKind,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

use anyhow::{Context, Result};

/// A held name.
#[derive(Debug)]
pub(crate) struct Claim {
    _socket: UnixDatagram,
}

impl Claim {
    /// Takes the name, unless it is held.
    pub(crate) fn take(name: &str) -> Result<Option<Self>> {
        let address = SocketAddr::from_abstract_name(format!("harvester-lab/{name}"))?;
        match UnixDatagram::bind_addr(&address) {
            Ok(socket) => Ok(Some(Self { _socket: socket })),
            Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error).with_context(|| format!("claiming {name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_held_once_and_free_again_after_that() {
        let name = format!("test-{}", std::process::id());
        let claim = Claim::take(&name).unwrap();
        assert!(claim.is_some());
        assert!(Claim::take(&name).unwrap().is_none());
        drop(claim);
        assert!(Claim::take(&name).unwrap().is_some());
    }
}
