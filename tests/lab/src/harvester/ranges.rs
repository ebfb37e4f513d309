//! The addresses of a pool: which there are, which is next, which comes back.
//!
//! Pure. In: a pool's ranges and books. Out: the books after a booking or a release. The walk is that of
//! the CNI's host-local allocator: round-robin behind the last address, each range's gateway left out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::kinds::{AllocatedAddress, IpPoolStatus, Range};

/// The ranges of a pool, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Span>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Span {
    subnet: IpNet,
    first: IpAddr,
    last: IpAddr,
    gateway: Option<IpAddr>,
}

/// Why there is no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The books say that it has one already.
    Duplicate {
        ip: String,
        id: String,
    },
    Exhausted(String),
    /// The address of its history is not to be had.
    History(String),
}

impl Refusal {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Duplicate { ip, id } => {
                format!("{ip} has been allocated to {id}, duplicate allocation is not allowed")
            }
            Self::Exhausted(ranges) => {
                format!("no IP addresses available in range set: {ranges}")
            }
            Self::History(text) => text.clone(),
        }
    }
}

impl Ranges {
    /// Fails with the words of the host's webhook.
    pub(super) fn parse(ranges: &[Range]) -> Result<Self, String> {
        if ranges.is_empty() {
            return Err("range can't be empty".to_owned());
        }
        let spans: Vec<Span> = ranges.iter().map(Span::parse).collect::<Result<_, _>>()?;
        let ranges = Self(spans);
        for (index, one) in ranges.0.iter().enumerate() {
            if let Some(other) = ranges.0.iter().skip(index + 1).find(|it| it.overlaps(one)) {
                let (one, other) = (one.text(), other.text());
                return Err(format!(
                    "there are overlaps between range {one} and {other}"
                ));
            }
        }
        Ok(ranges)
    }

    /// Addresses to be had if none were booked.
    pub(super) fn total(&self) -> i64 {
        let sizes = self.0.iter().map(Span::size);
        i64::try_from(sizes.fold(0, u128::saturating_add)).unwrap_or(i64::MAX)
    }

    pub(super) fn contains(&self, ip: &str) -> bool {
        ip.parse().is_ok_and(|ip| self.span_of(ip).is_some())
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let meets = |one: &Span| other.0.iter().any(|it| it.overlaps(one));
        self.0.iter().any(meets)
    }

    /// `<start>-<end>` of each range.
    pub(super) fn text(&self) -> String {
        let texts: Vec<String> = self.0.iter().map(Span::text).collect();
        texts.join(",")
    }

    /// Books an address for `id`; gives it with what the LoadBalancer's status says of it.
    pub(super) fn book(
        &self,
        books: &mut IpPoolStatus,
        pool: &str,
        id: &str,
    ) -> Result<AllocatedAddress, Refusal> {
        let ip = self.next(books, id)?;
        let Some(span) = self.span_of(ip) else {
            return Err(Refusal::Exhausted(self.text()));
        };
        let text = ip.to_string();
        books.allocated_history.remove(&text);
        books.allocated.insert(text.clone(), id.to_owned());
        books.last_allocated.clone_from(&text);
        books.available -= 1;
        Ok(AllocatedAddress {
            ip_pool: pool.to_owned(),
            ip: text,
            mask: span.subnet.netmask().to_string(),
            // What Go prints of an address that is none.
            gateway: span
                .gateway
                .map_or_else(|| "<nil>".to_owned(), |it| it.to_string()),
        })
    }

    fn next(&self, books: &IpPoolStatus, id: &str) -> Result<IpAddr, Refusal> {
        let holds = |(_, holder): &(&String, &String)| *holder == id;
        if let Some((ip, _)) = books.allocated_history.iter().find(holds) {
            return self.historic(books, ip);
        }
        if let Some((ip, _)) = books.allocated.iter().find(holds) {
            let (ip, id) = (ip.clone(), id.to_owned());
            return Err(Refusal::Duplicate { ip, id });
        }
        self.walk(&books.last_allocated)
            .find(|ip| !books.allocated.contains_key(&ip.to_string()))
            .ok_or_else(|| Refusal::Exhausted(self.text()))
    }

    fn historic(&self, books: &IpPoolStatus, ip: &str) -> Result<IpAddr, Refusal> {
        let ranges = self.text();
        let refused = |text| Err(Refusal::History(text));
        match ip.parse() {
            Ok(address) if self.span_of(address).is_some() => {
                if books.allocated.contains_key(ip) {
                    return refused(format!(
                        "requested IP address {ip} is not available in range set {ranges}"
                    ));
                }
                Ok(address)
            }
            _ => refused(format!("{ip} not in range set {ranges}")),
        }
    }

    /// Every address once, beginning behind `last`.
    fn walk(&self, last: &str) -> impl Iterator<Item = IpAddr> {
        let last: Option<IpAddr> = last.parse().ok();
        let at = last.and_then(|ip| self.0.iter().position(|it| it.contains(ip)));
        let (from, behind) = match (at, last) {
            (Some(at), Some(last)) => (at, Some(number(last))),
            _ => (0, None),
        };
        let rest = self.0.iter().skip(from).enumerate();
        let rest = rest.flat_map(move |(index, span)| match behind {
            Some(behind) if index == 0 => span.addresses(behind + 1, number(span.last)),
            _ => span.addresses(number(span.first), number(span.last)),
        });
        let wrapped = self
            .0
            .iter()
            .take(from)
            .flat_map(|span| span.addresses(number(span.first), number(span.last)));
        let end = behind.map(|behind| {
            let span = &self.0[from];
            span.addresses(number(span.first), behind)
        });
        rest.chain(wrapped).chain(end.into_iter().flatten())
    }

    fn span_of(&self, ip: IpAddr) -> Option<&Span> {
        self.0.iter().find(|it| it.contains(ip))
    }
}

/// Gives a booking back; twice is as once.
pub(super) fn release(books: &mut IpPoolStatus, ip: &str, id: &str) -> bool {
    if books.allocated.get(ip).is_none_or(|holder| holder != id) {
        return false;
    }
    books.allocated.remove(ip);
    books.allocated_history.insert(ip.to_owned(), id.to_owned());
    books.available += 1;
    true
}

impl Span {
    fn parse(range: &Range) -> Result<Self, String> {
        let subnet: IpNet = range.subnet.parse().map_err(|_| {
            let subnet = &range.subnet;
            format!("invalid CIDR address: {subnet}, a valid example is 192.168.1.0/24")
        })?;
        let subnet = subnet.trunc();
        let (first, last) = hosts(subnet);
        let given = |text: &str, role: &str| {
            (!text.is_empty())
                .then(|| member(subnet, text, role))
                .transpose()
        };
        let first_host = first;
        let mut first = given(&range.range_start, "start")?.unwrap_or(first);
        let mut last = given(&range.range_end, "end")?.unwrap_or(last);
        if number(first) > number(last) {
            std::mem::swap(&mut first, &mut last);
        }
        let single = subnet.addr().is_ipv4() && subnet.prefix_len() == subnet.max_prefix_len();
        let default_gateway = (!single).then_some(first_host);
        Ok(Self {
            subnet,
            first,
            last,
            gateway: given(&range.gateway, "gateway")?.or(default_gateway),
        })
    }

    fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.first.is_ipv4()
            && (number(self.first)..=number(self.last)).contains(&number(ip))
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    fn size(&self) -> u128 {
        let all = number(self.last) - number(self.first);
        let gateway = self.gateway.is_some_and(|it| self.contains(it));
        all.saturating_add(1) - u128::from(gateway)
    }

    fn addresses(&self, from: u128, to: u128) -> impl Iterator<Item = IpAddr> + use<> {
        let (v4, gateway) = (self.first.is_ipv4(), self.gateway);
        let addresses = (from..=to).map(move |number| address(number, v4));
        addresses.filter(move |ip| Some(*ip) != gateway)
    }

    fn text(&self) -> String {
        format!("{}-{}", self.first, self.last)
    }
}

/// The first and the last address that a host may have.
fn hosts(subnet: IpNet) -> (IpAddr, IpAddr) {
    let (network, last) = (subnet.network(), subnet.broadcast());
    if subnet.max_prefix_len() - subnet.prefix_len() < 2 {
        return (network, last);
    }
    let v4 = network.is_ipv4();
    let last = if v4 { number(last) - 1 } else { number(last) };
    (address(number(network) + 1, v4), address(last, v4))
}

fn member(subnet: IpNet, text: &str, role: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text
        .parse()
        .map_err(|_| format!("invalid range {role} {text}"))?;
    if !subnet.contains(&ip) {
        return Err(format!("IP {ip} is out of subnet {subnet}"));
    }
    if subnet.max_prefix_len() - subnet.prefix_len() < 2 {
        return Ok(ip);
    }
    if ip == subnet.network() {
        return Err(format!("IP {ip} is the network address"));
    }
    if ip.is_ipv4() && ip == subnet.broadcast() {
        return Err(format!("IP {ip} is the broadcast address"));
    }
    Ok(ip)
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

fn address(number: u128, v4: bool) -> IpAddr {
    if v4 {
        let number = u32::try_from(number).expect("it lies between two IPv4 addresses");
        Ipv4Addr::from(number).into()
    } else {
        Ipv6Addr::from(number).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(subnet: &str, start: &str, end: &str) -> Range {
        Range {
            subnet: subnet.to_owned(),
            range_start: start.to_owned(),
            range_end: end.to_owned(),
            gateway: String::new(),
        }
    }

    fn ranges(list: &[Range]) -> Ranges {
        Ranges::parse(list).unwrap()
    }

    fn book(ranges: &Ranges, books: &mut IpPoolStatus, id: &str) -> Result<String, String> {
        ranges
            .book(books, "pool", id)
            .map(|it| it.ip)
            .map_err(|it| it.text())
    }

    #[test]
    fn host_addresses_are_given_in_turn_and_come_back_to_who_had_them() {
        let three = ranges(&[range("192.168.1.0/24", "192.168.1.10", "192.168.1.12")]);
        let mut books = IpPoolStatus::default();
        for (id, ip) in [
            ("a", "192.168.1.10"),
            ("b", "192.168.1.11"),
            ("c", "192.168.1.12"),
        ] {
            assert_eq!(book(&three, &mut books, id).unwrap(), ip);
        }
        let exhausted = "no IP addresses available in range set: 192.168.1.10-192.168.1.12";
        assert_eq!(book(&three, &mut books, "d").unwrap_err(), exhausted);

        assert!(release(&mut books, "192.168.1.10", "a"));
        assert!(!release(&mut books, "192.168.1.10", "a"));
        assert_eq!(book(&three, &mut books, "a").unwrap(), "192.168.1.10");
        release(&mut books, "192.168.1.10", "a");
        assert_eq!(book(&three, &mut books, "d").unwrap(), "192.168.1.10");
        assert!(books.allocated_history.is_empty());
        assert_eq!(book(&three, &mut books, "a").unwrap_err(), exhausted);
    }

    #[test]
    fn host_walks_wrap_round_to_the_only_free_address() {
        let three = ranges(&[range("192.168.1.0/24", "192.168.1.10", "192.168.1.12")]);
        let mut books = IpPoolStatus::default();
        for id in ["a", "b", "c"] {
            book(&three, &mut books, id).unwrap();
        }
        books.last_allocated = "192.168.1.11".to_owned();
        books.allocated.remove("192.168.1.10");
        assert_eq!(book(&three, &mut books, "e").unwrap(), "192.168.1.10");
    }

    #[test]
    fn host_totals_leave_the_gateway_out() {
        let first_three = ranges(&[range("192.168.1.0/24", "192.168.1.1", "192.168.1.3")]);
        assert_eq!(first_three.total(), 2);
        let mut books = IpPoolStatus::default();
        assert_eq!(book(&first_three, &mut books, "a").unwrap(), "192.168.1.2");
        assert_eq!(ranges(&[range("192.168.1.0/24", "", "")]).total(), 253);
        let swapped = range("192.168.1.0/24", "192.168.1.12", "192.168.1.10");
        assert_eq!(ranges(&[swapped]).total(), 3);
        assert_eq!(ranges(&[range("fd00::/64", "", "")]).total(), i64::MAX);
    }

    #[test]
    fn host_ranges_of_one_address_have_it_or_not() {
        let mut books = IpPoolStatus::default();
        let one = ranges(&[range("192.168.1.0/24", "192.168.1.9", "192.168.1.9")]);
        for id in ["a", "b"] {
            assert_eq!(book(&one, &mut books, id).unwrap(), "192.168.1.9");
            assert!(book(&one, &mut books, "c").is_err());
            release(&mut books, "192.168.1.9", id);
        }
        let single = ranges(&[range("192.168.1.7/32", "", "")]);
        assert_eq!(single.total(), 1);
        let mut books = IpPoolStatus::default();
        let given = single.book(&mut books, "pool", "a").unwrap();
        assert_eq!((&*given.ip, &*given.gateway), ("192.168.1.7", "<nil>"));
        assert_eq!(given.mask, "255.255.255.255");
    }

    #[test]
    fn host_second_range_begins_when_the_first_is_passed_not_when_it_is_full() {
        let two = ranges(&[
            range("192.168.1.0/24", "192.168.1.10", "192.168.1.11"),
            range("192.168.2.0/24", "192.168.2.10", "192.168.2.11"),
        ]);
        let mut books = IpPoolStatus::default();
        book(&two, &mut books, "a").unwrap();
        book(&two, &mut books, "b").unwrap();
        release(&mut books, "192.168.1.10", "a");
        assert_eq!(book(&two, &mut books, "c").unwrap(), "192.168.2.10");
        assert_eq!(book(&two, &mut books, "d").unwrap(), "192.168.2.11");
        assert_eq!(book(&two, &mut books, "e").unwrap(), "192.168.1.10");
    }

    #[test]
    fn host_books_refuse_a_second_booking_of_the_same_id() {
        let whole = ranges(&[range("192.168.1.0/24", "", "")]);
        let mut books = IpPoolStatus::default();
        book(&whole, &mut books, "ns/a").unwrap();
        let refused = book(&whole, &mut books, "ns/a").unwrap_err();
        let said = "192.168.1.2 has been allocated to ns/a, duplicate allocation is not allowed";
        assert_eq!(refused, said);
        release(&mut books, "192.168.1.2", "ns/a");
        assert_eq!(book(&whole, &mut books, "ns/a").unwrap(), "192.168.1.2");
    }

    #[test]
    fn host_ranges_that_are_wrong_are_named() {
        for (subnet, start, text) in [
            (
                "nonsense",
                "",
                "invalid CIDR address: nonsense, a valid example is 192.168.1.0/24",
            ),
            ("192.168.1.0/24", "x", "invalid range start x"),
            (
                "192.168.1.0/24",
                "10.0.0.1",
                "IP 10.0.0.1 is out of subnet 192.168.1.0/24",
            ),
            (
                "192.168.1.0/24",
                "192.168.1.0",
                "IP 192.168.1.0 is the network address",
            ),
            (
                "192.168.1.0/24",
                "192.168.1.255",
                "IP 192.168.1.255 is the broadcast address",
            ),
        ] {
            assert_eq!(Ranges::parse(&[range(subnet, start, "")]), Err(text.into()));
        }
        assert_eq!(Ranges::parse(&[]), Err("range can't be empty".into()));
        let twice = [range("10.0.0.0/24", "", ""), range("10.0.0.0/25", "", "")];
        assert!(Ranges::parse(&twice).unwrap_err().contains("overlaps"));
    }
}
