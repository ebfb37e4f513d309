//! Any bytes are read without panic, and what is read as a claim names a host.
#![no_main]

use harvester_cloud_provider::net::frame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(heard) = frame::parse(bytes)
        && let Some(claim) = heard.claim()
    {
        assert!(!claim.address.is_multicast() || claim.address.is_ipv4());
        assert_eq!(claim.mac.0[0] & 1, 0, "a group address is nobody's");
    }
});
