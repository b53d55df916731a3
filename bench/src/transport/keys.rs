//! A CA and a node's certificate for one run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use net::tls::Tls;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::Result;

/// The certificate, its key, the CA.
fn files(folder: &Path) -> [PathBuf; 3] {
    ["cert.pem", "key.pem", "ca.pem"].map(|name| folder.join(name))
}

fn named(name: &str) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

/// Creates them. Both ends present the same certificate.
///
/// # Errors
/// The files cannot be written.
pub fn make(folder: &Path) -> Result<()> {
    let (mut ca, ca_key, key) = (named("a CA")?, KeyPair::generate()?, KeyPair::generate()?);
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = ca.self_signed(&ca_key)?.pem();
    let signed = named("a node")?.signed_by(&key, &Issuer::new(ca, ca_key))?.pem();
    fs::create_dir_all(folder)?;
    for (file, text) in files(folder).iter().zip([signed, key.serialize_pem(), root]) {
        fs::write(file, text)?;
        fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// Reads them.
///
/// # Errors
/// They do not exist.
pub fn read(folder: &Path) -> Result<Tls> {
    let [certificate, key, ca] = files(folder);
    Ok(Tls::from_files(&certificate, &key, &ca)?)
}
