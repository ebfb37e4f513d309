//! Ethernet addresses.

use std::{fmt, str::FromStr};

use anyhow::{Context, Error, Result};

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The interface's IPv6 link-local address by EUI-64 (RFC 4291, appendix A).
    pub fn link_local(self) -> std::net::Ipv6Addr {
        let mut octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0];
        octets[8..11].copy_from_slice(&self.0[..3]);
        octets[13..].copy_from_slice(&self.0[3..]);
        octets[8] ^= 0x02;
        octets.into()
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|octet| write!(f, ":{octet:02x}"))
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let octets: Vec<u8> = text
            .split(':')
            .map(|octet| u8::from_str_radix(octet, 16))
            .collect::<Result<_, _>>()
            .with_context(|| format!("{text:?} is not an Ethernet address"))?;
        let octets = octets
            .try_into()
            .map_err(|_| Error::msg(format!("{text:?} is not an Ethernet address")))?;
        Ok(Self(octets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let mac: MacAddress = "02:00:00:00:0a:ff".parse().unwrap();
        assert_eq!(mac, MacAddress([2, 0, 0, 0, 10, 255]));
        assert_eq!(mac.to_string(), "02:00:00:00:0a:ff");
        assert!("02:00:00:00:0a".parse::<MacAddress>().is_err());
        assert!("02:00:00:00:0a:xx".parse::<MacAddress>().is_err());
    }

    #[test]
    fn link_local_flips_the_universal_bit() {
        let mac = MacAddress([0x02, 0, 0, 0, 0x01, 0x05]);
        assert_eq!(mac.link_local().to_string(), "fe80::ff:fe00:105");
    }
}
