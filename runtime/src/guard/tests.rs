//! Address and URL vectors: what gets through and what does not, with every known way to write an address.

use super::*;
use proptest::prelude::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn strict() -> Guard {
    Guard::new(&[], &[])
}

/// Everything admitted that can be, one API server inside it.
fn open() -> Guard {
    Guard::new(
        &[net("0.0.0.0/0"), net("::/0")],
        &[
            net("10.96.0.1/32"),
            net("fd00:10:96::1/128"),
            net("203.0.113.7/32"),
        ],
    )
}

const ALWAYS: &[&str] = &[
    "0.0.0.0",
    "0.1.2.3",
    "127.0.0.1",
    "127.0.0.2",
    "127.255.255.255",
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "169.254.169.123",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    // IPv4-mapped
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0.0.0.0",
    "::ffff:255.255.255.255",
    // IPv4-compatible
    "::127.0.0.1",
    "::169.254.169.254",
    "::8.8.8.8",
    "::10.0.0.1",
    // IPv4-translated, NAT64 (well-known and local)
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::8.8.8.8",
    "64:ff9b:1::7f00:1",
    "64:ff9b:1::1",
    // 6to4 and Teredo
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2002:808:808::1",
    "2001::1",
    "2001:0:4136:e378::1",
    // unspecified, loopback, discard, link-local, site-local, SRv6, multicast, unassigned
    "::",
    "::1",
    "::2",
    "100::1",
    "100:0:0:1::1",
    "fe80::1",
    "febf::1",
    "fec0::1",
    "5f00::1",
    "ff00::1",
    "ff02::1",
    "ff0e::1",
    "4000::1",
    "1::1",
    "e000::1",
    // metadata over IPv6
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
];

const PRIVATE: &[&str] = &[
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "192.168.255.255",
    "192.0.0.1",
    "192.0.2.1",
    "192.31.196.1",
    "192.52.193.1",
    "192.88.99.1",
    "192.175.48.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "::ffff:10.0.0.1",
    "::ffff:192.168.1.1",
    "fc00::1",
    "fd12:3456::1",
    "fdff::1",
    "2001:db8::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "3fff::1",
];

const PUBLIC: &[&str] = &[
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.1",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "169.255.0.1",
    "168.63.129.15",
    "172.15.255.255",
    "172.32.0.1",
    "191.255.255.255",
    "192.167.255.255",
    "192.169.0.1",
    "192.0.1.1",
    "198.17.255.255",
    "198.20.0.1",
    "223.255.255.255",
    "::ffff:8.8.8.8",
    "2606:4700::1111",
    "2a00:1450::1",
    "2001:4860:4860::8888",
    "2003::1",
    "2400::1",
    "3ffe::1",
];

/// Ways to write 127.0.0.1, 169.254.169.254 and 10.0.0.1 that a URL parser turns into the address.
const DISGUISED: &[(&str, Refused)] = &[
    ("http://127.1/", Refused::Always),
    ("http://127.0.1/", Refused::Always),
    ("http://2130706433/", Refused::Always),
    ("http://0x7f000001/", Refused::Always),
    ("http://0x7f.0.0.1/", Refused::Always),
    ("http://0177.0.0.1/", Refused::Always),
    ("http://017700000001/", Refused::Always),
    ("http://127.0.0.1./", Refused::Always),
    ("http://①②⑦.⓪.⓪.①/", Refused::Always),
    ("http://%31%32%37.0.0.1/", Refused::Always),
    ("http://127。0。0。1/", Refused::Always),
    ("http:127.0.0.1", Refused::Always),
    ("http:\\\\127.0.0.1\\x", Refused::Always),
    ("https://[::1]/", Refused::Always),
    ("https://[0:0:0:0:0:0:0:1]/", Refused::Always),
    ("https://[::127.0.0.1]/", Refused::Always),
    ("https://[::7f00:1]/", Refused::Always),
    ("https://[::ffff:7f00:1]/", Refused::Always),
    ("https://[::ffff:127.0.0.1]:8443/", Refused::Always),
    ("https://[64:ff9b::127.0.0.1]/", Refused::Always),
    ("https://[2002:7f00:1::]/", Refused::Always),
    ("http://2852039166/latest/meta-data", Refused::Always),
    ("http://0xa9fea9fe/", Refused::Always),
    ("http://0251.0376.0251.0376/", Refused::Always),
    ("http://169.254.43518/", Refused::Always),
    ("http://[::ffff:a9fe:a9fe]/", Refused::Always),
    ("http://0/", Refused::Always),
    ("http://167772161/", Refused::Private),
    ("http://0xa.1/", Refused::Private),
    ("http://012.0.0.1/", Refused::Private),
    ("http://[::ffff:a00:1]/", Refused::Private),
    ("http://localhost/", Refused::HostName),
    ("http://LOCALHOST:80/", Refused::HostName),
    ("http://localhost./", Refused::HostName),
    ("http://app.localhost/", Refused::HostName),
    ("http://ｌocalhost/", Refused::HostName),
    ("http://kubernetes.default.svc/", Refused::HostName),
    (
        "https://kubernetes.default.svc.cluster.local./",
        Refused::HostName,
    ),
    ("http://metadata.google.internal/", Refused::HostName),
    ("http://user@hooks.example/", Refused::UserInfo),
    ("http://user:secret@hooks.example/", Refused::UserInfo),
    ("http://:secret@hooks.example/", Refused::UserInfo),
    ("http://hooks.example:0/", Refused::Port),
    ("ftp://hooks.example/", Refused::Scheme),
    ("file:///etc/passwd", Refused::Scheme),
    ("gopher://127.0.0.1:6379/_x", Refused::Scheme),
    ("data:text/plain,x", Refused::Scheme),
    ("/hook", Refused::NotAUrl),
    ("", Refused::NotAUrl),
    ("http://", Refused::NotAUrl),
    ("http://[fe80::1%25eth0]/", Refused::NotAUrl),
    ("http://256.0.0.1/", Refused::NotAUrl),
    ("http://hooks example/", Refused::NotAUrl),
];

#[expect(clippy::unwrap_in_result, reason = "the address of a test parses")]
fn answer(guard: &Guard, address: &str) -> Result<(), Refused> {
    guard.check_ip(address.parse().expect("an address"))
}

#[test]
fn some_addresses_are_refused_whatever_is_allowed() {
    for address in ALWAYS {
        assert_eq!(
            answer(&strict(), address),
            Err(Refused::Always),
            "{address}"
        );
        assert_eq!(answer(&open(), address), Err(Refused::Always), "{address}");
    }
}

#[test]
fn private_addresses_need_an_allowed_range() {
    for address in PRIVATE {
        assert_eq!(
            answer(&strict(), address),
            Err(Refused::Private),
            "{address}"
        );
        assert_eq!(answer(&open(), address), Ok(()), "{address}");
    }
}

#[test]
fn public_addresses_pass() {
    for address in PUBLIC {
        assert_eq!(answer(&strict(), address), Ok(()), "{address}");
    }
}

#[test]
fn the_api_server_is_refused_inside_an_allowed_range() {
    for address in [
        "10.96.0.1",
        "::ffff:10.96.0.1",
        "fd00:10:96::1",
        "203.0.113.7",
    ] {
        assert_eq!(answer(&open(), address), Err(Refused::Always), "{address}");
    }
    assert_eq!(answer(&open(), "10.96.0.2"), Ok(()));
}

#[test]
fn only_the_allowed_range_is_admitted() {
    let guard = Guard::new(&[net("10.1.0.0/16"), net("::ffff:10.2.0.0/112")], &[]);
    assert_eq!(answer(&guard, "10.1.2.3"), Ok(()));
    assert_eq!(answer(&guard, "::ffff:10.1.2.3"), Ok(()));
    assert_eq!(answer(&guard, "10.2.2.3"), Ok(()));
    assert_eq!(answer(&guard, "10.3.0.1"), Err(Refused::Private));
    assert_eq!(answer(&guard, "192.168.0.1"), Err(Refused::Private));
}

#[test]
fn disguised_urls_are_refused() {
    for (url, expected) in DISGUISED {
        assert_eq!(strict().check_url(url), Err(*expected), "{url}");
    }
}

#[test]
fn ordinary_urls_pass() {
    for url in [
        "https://hooks.example/x?y=z",
        "http://hooks.example:8080",
        "https://8.8.8.8/",
        "https://[2606:4700::1111]:8443/a",
        "https://notlocalhost/",
        "https://localhost.example/",
        "http://receiver.social.svc.cluster.local/hook",
    ] {
        assert!(strict().check_url(url).is_ok(), "{url}");
    }
}

#[test]
fn a_refusal_never_repeats_the_url() {
    let refused = strict()
        .check_url("http://user:hunter2@10.0.0.1/")
        .unwrap_err();
    assert!(!refused.to_string().contains("hunter2"));
}

proptest! {
    /// No IPv6 form of a refused IPv4 address is admitted.
    #[test]
    fn an_embedded_address_is_never_better_off(bits: u32) {
        let inner = Ipv4Addr::from(bits);
        let [a, b, c, d] = inner.octets();
        let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let guard = strict();
        prop_assert_eq!(
            guard.check_ip(inner.to_ipv6_mapped().into()),
            guard.check_ip(inner.into())
        );
        for carrier in [
            Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
            Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
            Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, !high, !low),
        ] {
            prop_assert!(guard.check_ip(carrier.into()).is_err(), "{}", carrier);
        }
    }

    /// A URL made of an admitted address is admitted, one of a refused address is refused.
    #[test]
    fn url_and_address_agree(bits: u32) {
        let address = Ipv4Addr::from(bits);
        let guard = strict();
        prop_assert_eq!(
            guard.check_url(&format!("https://{address}/")).map(drop),
            guard.check_ip(address.into())
        );
        prop_assert_eq!(
            guard.check_url(&format!("https://{bits}/")).map(drop),
            guard.check_ip(address.into())
        );
    }
}
