//! The one TLS crypto provider of every binary: ring.

/// Makes ring the process's default rustls provider. Called first thing in each `main`, because rustls refuses
/// to choose when a dependency brings a second provider along. A second call changes nothing.
pub fn install_ring_provider() {
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        tracing::debug!("a TLS provider is installed already");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_in_place_and_a_second_call_is_harmless() {
        install_ring_provider();
        install_ring_provider();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }
}
