//! Free TCP ports on loopback, never the same for two processes at once.

use super::dirs;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Below the range that the kernel gives to outgoing connections, so that none of those takes a chosen port.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// A free port, reserved for this process: its lock file keeps other test processes off it.
pub fn free() -> anyhow::Result<u16> {
    static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let locks = dirs::runs()?.join(".ports");
    std::fs::create_dir_all(&locks)?;
    for _ in 0..1_000 {
        let port = rand::random_range(RANGE);
        let lock = File::create(locks.join(port.to_string()))?;
        if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            RESERVED
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(lock);
            return Ok(port);
        }
    }
    anyhow::bail!("no free port in {RANGE:?}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_ports_differ_and_are_free() {
        let (one, two) = (super::free().unwrap(), super::free().unwrap());
        assert_ne!(one, two);
        std::net::TcpListener::bind(("127.0.0.1", one)).unwrap();
    }
}
