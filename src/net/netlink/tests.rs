use std::net::{Ipv4Addr, Ipv6Addr};

use rtnetlink::LinkUnspec;

use super::*;
use crate::{
    net::{
        link::{LinkIndex, Snapshot},
        testing::{Namespace, Wire, eventually, raw},
    },
    runtime::clock,
};

fn netlink() -> Netlink {
    let (netlink, connection) = Netlink::connect().unwrap();
    tokio::spawn(connection);
    netlink
}

fn vip(link: LinkIndex, address: impl Into<IpAddr>, lifetime: Option<u64>) -> VipAddress {
    let address = address.into();
    VipAddress {
        key: AddressKey {
            link,
            address,
            prefix_len: if address.is_ipv6() { 128 } else { 32 },
        },
        lifetime: lifetime.map(Duration::from_secs),
    }
}

const V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);

/// Runs with one end of a link whose other end is up as well.
fn with_link<F: Future<Output = ()>>(test: impl FnOnce(Wire) -> F + Send + 'static) {
    let (Some(here), Some(there)) = (Namespace::new(), Namespace::new()) else {
        return;
    };
    let (wire, _) = here.join(&there);
    here.run(move || test(wire));
}

#[test]
fn lifetimes_are_whole_seconds_and_never_mean_something_else() {
    for (lifetime, seconds) in [
        (Duration::ZERO, 1),
        (Duration::from_millis(1), 1),
        (Duration::from_secs(5), 5),
        (Duration::from_millis(5001), 6),
        (Duration::MAX, u32::MAX - 1),
    ] {
        assert_eq!(whole_seconds(lifetime), seconds);
    }
}

#[test]
fn errno_is_read_in_the_light_of_the_family() {
    assert_eq!(Error::from_errno(libc::EACCES, true), Error::Ipv6Disabled);
    assert_eq!(
        Error::from_errno(libc::EACCES, false),
        Error::Kernel(libc::EACCES)
    );
    assert_eq!(Error::from_errno(libc::EPERM, true), Error::Permission);
}

#[test]
fn vips_are_added_marked_deprecated_and_usable_at_once() {
    with_link(|wire| async move {
        let netlink = netlink();
        let vips = [vip(wire.index, V4, Some(60)), vip(wire.index, V6, None)];
        assert_eq!(netlink.ensure_addresses(&vips).await, [Ok(()), Ok(())]);
        let all = netlink.snapshot().await.unwrap();
        for vip in &vips {
            let seen = &all.addresses[&vip.key];
            assert!(seen.marked && seen.usable && seen.deprecated, "{seen:?}");
        }
        let keys = vips.map(|vip| vip.key);
        assert_eq!(netlink.remove_addresses(&keys).await, [Ok(()), Ok(())]);
        assert_eq!(netlink.remove_addresses(&keys).await, [Ok(()), Ok(())]);
        let all = netlink.snapshot().await.unwrap();
        assert!(!all.addresses.values().any(|a| a.marked));
    });
}

#[test]
fn a_lifetime_is_renewed_in_place_and_runs_out_without_us() {
    with_link(|wire| async move {
        let netlink = netlink();
        let kept = [vip(wire.index, V4, Some(2)), vip(wire.index, V6, Some(2))];
        let left = vip(wire.index, Ipv4Addr::new(192, 0, 2, 8), Some(1));
        let foreign = Ipv4Addr::new(192, 0, 2, 200);
        raw()
            .address()
            .add(wire.index.0, foreign.into(), 24)
            .execute()
            .await
            .unwrap();
        netlink
            .ensure_addresses(&[left])
            .await
            .swap_remove(0)
            .unwrap();
        let end = clock::now() + Duration::from_millis(3500);
        eventually("the time is over", async || {
            for result in netlink.ensure_addresses(&kept).await {
                result.unwrap();
            }
            (clock::now() > end).then_some(())
        })
        .await;
        let all = netlink.snapshot().await.unwrap();
        assert!(kept.iter().all(|vip| all.addresses.contains_key(&vip.key)));
        assert!(!all.addresses.contains_key(&left.key));
        let other = all.addresses.values().find(|a| a.address == foreign);
        let other = other.expect("an address of others is untouched");
        assert!(!other.marked && !other.deprecated);
    });
}

#[test]
fn one_failure_in_a_batch_is_told_apart_from_its_neighbours() {
    with_link(|wire| async move {
        let netlink = netlink();
        let vips = [
            vip(wire.index, V4, None),
            vip(LinkIndex(4711), V4, None),
            vip(wire.index, V6, None),
        ];
        assert_eq!(
            netlink.ensure_addresses(&vips).await,
            [Ok(()), Err(Error::NoSuchLink), Ok(())]
        );
        assert_eq!(
            netlink.remove_addresses(&vips.map(|v| v.key)).await,
            [Ok(()), Ok(()), Ok(())]
        );
    });
}

#[test]
fn ipv6_that_is_disabled_on_the_link_has_its_own_error() {
    with_link(|wire| async move {
        // The files below net are those of the namespace of the thread that opens them.
        let switch = "/proc/sys/net/ipv6/conf/east/disable_ipv6";
        if let Err(error) = std::fs::write(switch, "1") {
            println!("skipped: cannot disable IPv6: {error}");
            return;
        }
        let results = netlink()
            .ensure_addresses(&[vip(wire.index, V6, None), vip(wire.index, V4, None)])
            .await;
        assert_eq!(results, [Err(Error::Ipv6Disabled), Ok(())]);
    });
}

#[test]
fn a_closed_connection_is_an_error_for_every_entry() {
    with_link(|wire| async move {
        let (netlink, connection) = Netlink::connect().unwrap();
        drop(connection);
        let vips = [vip(wire.index, V4, None), vip(wire.index, V6, None)];
        assert_eq!(
            netlink.ensure_addresses(&vips).await,
            [Err(Error::Disconnected), Err(Error::Disconnected)]
        );
        assert_eq!(netlink.snapshot().await, Err(Error::Disconnected));
    });
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_does_not_answer_costs_the_deadline_and_no_more() {
    let (netlink, connection) = Netlink::connect().unwrap();
    // Alive, but never polled.
    let connection = Box::pin(connection);
    let before = clock::now();
    let vips = [vip(LinkIndex(1), V4, None), vip(LinkIndex(1), V6, None)];
    assert_eq!(
        netlink.ensure_addresses(&vips).await,
        [Err(Error::Deadline), Err(Error::Deadline)]
    );
    assert_eq!(clock::now() - before, DEADLINE);
    drop(connection);
}

#[test]
fn a_thousand_addresses_are_one_batch() {
    with_link(|wire| async move {
        let netlink = netlink();
        let vips: Vec<VipAddress> = (0..1000_u32)
            .map(|n| vip(wire.index, Ipv4Addr::from(0x0a00_0000 + n), Some(60)))
            .collect();
        for what in ["added", "renewed"] {
            let before = clock::now();
            let results = netlink.ensure_addresses(&vips).await;
            println!("1,000 addresses {what} in {:?}", clock::now() - before);
            assert!(results.iter().all(Result::is_ok));
        }
        let Snapshot { addresses, .. } = netlink.snapshot().await.unwrap();
        assert_eq!(addresses.values().filter(|a| a.marked).count(), 1000);
        let keys: Vec<AddressKey> = vips.iter().map(|v| v.key).collect();
        let before = clock::now();
        let results = netlink.remove_addresses(&keys).await;
        println!("1,000 addresses removed in {:?}", clock::now() - before);
        assert!(results.iter().all(Result::is_ok));
    });
}

#[test]
fn addresses_of_a_link_that_is_gone_count_as_removed() {
    with_link(|wire| async move {
        let netlink = netlink();
        let vip = vip(wire.index, V4, None);
        netlink
            .ensure_addresses(&[vip])
            .await
            .swap_remove(0)
            .unwrap();
        let link = LinkUnspec::new_with_index(wire.index.0).down().build();
        raw().link().change(link).execute().await.unwrap();
        raw().link().del(wire.index.0).execute().await.unwrap();
        assert_eq!(netlink.remove_addresses(&[vip.key]).await, [Ok(())]);
    });
}
