//! Which addresses the endpoints of Subscriptions may have.
//!
//! Whoever may create a Subscription can make a worker connect to an address of their choice, from inside the
//! cluster. The guard is asked about every address at the moment it is used: after DNS, before the connection.
//! Three classes: refused always (the machine itself, its link, cloud metadata, everything that is no unicast
//! address, and the ranges the operator passes, which hold the API server); refused unless the platform team
//! admits the range (private and special-purpose networks); admitted (the public internet).
//!
//! IPv6 forms that carry an IPv4 address are judged by that address when the kernel itself would connect to it
//! (IPv4-mapped) and refused otherwise (compatible, NAT64, 6to4, Teredo): a gateway may unwrap them.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use url::{Host, Url};

/// Why an endpoint is refused. Says the class and never repeats the URL, which may hold a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Not an absolute URL.
    #[error("URL must be absolute, with a host")]
    NotAUrl,
    /// A scheme other than http and https.
    #[error("URL scheme must be http or https")]
    Scheme,
    /// User name or password in the URL.
    #[error("URL must not carry a user name or password")]
    UserInfo,
    /// Port 0.
    #[error("URL port must not be 0")]
    Port,
    /// A name that only ever means the machine, the cluster's API server or cloud metadata.
    #[error(
        "host name is refused: it names the machine itself, the API server or a metadata service"
    )]
    HostName,
    /// An address that is refused whatever the settings.
    #[error(
        "address is refused: loopback, link-local, metadata, API server or not a unicast address"
    )]
    Always,
    /// A private or special-purpose address outside the admitted ranges.
    #[error("address is private and not in egress.allowedCIDRs")]
    Private,
}

/// Judges URLs and addresses.
#[derive(Clone, Debug)]
pub struct Guard {
    allowed: Vec<IpNet>,
    refused: Vec<IpNet>,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(a: u16, b: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), prefix)
}

/// Refused always, IPv4.
const ALWAYS_V4: &[Ipv4Net] = &[
    v4(0, 0, 0, 0, 8),          // this network: 0.0.0.0 connects to the machine itself
    v4(127, 0, 0, 0, 8),        // loopback
    v4(169, 254, 0, 0, 16),     // link-local: metadata of most clouds, ECS credentials
    v4(100, 100, 100, 200, 32), // metadata of Alibaba Cloud, inside shared address space
    v4(168, 63, 129, 16, 32),   // platform endpoint of Azure, a public address
    v4(192, 0, 0, 192, 32),     // metadata of Oracle Cloud, older form
    v4(224, 0, 0, 0, 4),        // multicast
    v4(240, 0, 0, 0, 4),        // class E and broadcast
];

/// Refused unless admitted, IPv4.
const PRIVATE_V4: &[Ipv4Net] = &[
    v4(10, 0, 0, 0, 8),
    v4(100, 64, 0, 0, 10), // shared address space
    v4(172, 16, 0, 0, 12),
    v4(192, 0, 0, 0, 24),    // IETF protocol assignments
    v4(192, 0, 2, 0, 24),    // documentation
    v4(192, 31, 196, 0, 24), // AS112
    v4(192, 52, 193, 0, 24), // AMT
    v4(192, 88, 99, 0, 24),  // 6to4 relays
    v4(192, 168, 0, 0, 16),
    v4(192, 175, 48, 0, 24), // AS112
    v4(198, 18, 0, 0, 15),   // benchmarks
    v4(198, 51, 100, 0, 24), // documentation
    v4(203, 0, 113, 0, 24),  // documentation
];

/// Refused always inside 2000::/3; outside it only [`UNIQUE_LOCAL`] can be admitted at all.
const ALWAYS_V6: &[Ipv6Net] = &[
    v6(0x2001, 0, 32), // Teredo
    v6(0x2002, 0, 16), // 6to4
];

/// Refused unless admitted, IPv6.
const PRIVATE_V6: &[Ipv6Net] = &[
    v6(0x2001, 0, 23),     // IETF protocol assignments
    v6(0x2001, 0xdb8, 32), // documentation
    v6(0x3fff, 0, 20),     // documentation
    UNIQUE_LOCAL,
];

const UNIQUE_LOCAL: Ipv6Net = v6(0xfc00, 0, 7);
const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 3);
/// Metadata service of AWS over IPv6, inside the unique local range.
const METADATA_V6: Ipv6Net =
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32);
/// Metadata service of Google Cloud over IPv6.
const METADATA_V6_GOOGLE: Ipv6Net =
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0), 32);

/// Names that are refused without asking DNS, with everything below them. What DNS answers is checked anyway:
/// this only gives the clearer and earlier answer.
const NAMES: &[&str] = &[
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "metadata",
    "metadata.google.internal",
];

impl Guard {
    /// A guard that admits private addresses inside `allowed`, and refuses `refused` even there.
    pub fn new(allowed: &[IpNet], refused: &[IpNet]) -> Self {
        Self {
            allowed: allowed.to_vec(),
            refused: refused.to_vec(),
        }
    }

    /// Parses `url` and judges what can be judged without DNS. Where the host is an address it is checked here;
    /// a name's addresses are for [`Guard::check_ip`], each time it is resolved.
    ///
    /// # Errors
    /// The URL must not be used.
    pub fn check_url(&self, url: &str) -> Result<Url, Refused> {
        let url = Url::parse(url).map_err(|_| Refused::NotAUrl)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refused::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::UserInfo);
        }
        if url.port() == Some(0) {
            return Err(Refused::Port);
        }
        match url.host() {
            None => Err(Refused::NotAUrl),
            Some(Host::Ipv4(address)) => self.check_ip(address.into()),
            Some(Host::Ipv6(address)) => self.check_ip(address.into()),
            Some(Host::Domain(name)) => check_name(name),
        }?;
        Ok(url)
    }

    /// Judges one address.
    ///
    /// # Errors
    /// A connection to it must not be opened.
    pub fn check_ip(&self, address: IpAddr) -> Result<(), Refused> {
        // The kernel connects an IPv4-mapped address over IPv4.
        let address = address.to_canonical();
        if always(address) || self.refused.iter().any(|net| covers(net, address)) {
            return Err(Refused::Always);
        }
        if private(address) && !self.allowed.iter().any(|net| covers(net, address)) {
            return Err(Refused::Private);
        }
        Ok(())
    }
}

/// Does `net`, written as IPv4 or as its IPv4-mapped form, contain `address`?
fn covers(net: &IpNet, address: IpAddr) -> bool {
    match (net, address) {
        (IpNet::V6(net), IpAddr::V4(address)) => net.contains(&address.to_ipv6_mapped()),
        _ => net.contains(&address),
    }
}

fn always(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => ALWAYS_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => {
            METADATA_V6.contains(&address)
                || METADATA_V6_GOOGLE.contains(&address)
                || ALWAYS_V6.iter().any(|net| net.contains(&address))
                // Unspecified, loopback, IPv4-compatible, NAT64, discard-only, SRv6, link- and site-local,
                // multicast and whatever is not assigned yet.
                || !(GLOBAL_UNICAST.contains(&address) || UNIQUE_LOCAL.contains(&address))
        }
    }
}

fn private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => PRIVATE_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => PRIVATE_V6.iter().any(|net| net.contains(&address)),
    }
}

fn check_name(name: &str) -> Result<(), Refused> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let refused = NAMES.iter().any(|refused| {
        name.strip_suffix(refused)
            .is_some_and(|rest| rest.is_empty() || (*refused == "localhost" && rest.ends_with('.')))
    });
    if refused {
        Err(Refused::HostName)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
