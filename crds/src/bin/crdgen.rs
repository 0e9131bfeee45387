//! Writes the CRDs of both kinds beside the source of the types.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for crd in fanout_crds::crds() {
        let file = folder.join(format!("{}.yaml", crd.spec.names.plural));
        std::fs::write(file, fanout_crds::yaml(&crd))?;
    }
    Ok(())
}
