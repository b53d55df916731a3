use std::os::unix::fs::PermissionsExt;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use super::*;

/// A fleet's CA.
pub(crate) struct Ca {
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn ymd(params: &mut CertificateParams, from: i32, to: i32) {
    params.not_before = rcgen::date_time_ymd(from, 1, 1);
    params.not_after = rcgen::date_time_ymd(to, 1, 1);
}

impl Ca {
    pub(crate) fn new() -> Ca {
        let (mut params, key) = (named("a fleet"), KeyPair::generate().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let made = params.self_signed(&key).unwrap();
        Ca { certificate: made.der().clone(), pem: made.pem(), issuer: Issuer::new(params, key) }
    }

    fn sign(&self, params: &CertificateParams) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn tls(&self, params: &CertificateParams, ca: &Ca) -> Tls {
        let (made, key) = self.sign(params);
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Tls::new(vec![made.der().clone()], key, vec![ca.certificate.clone()]).unwrap()
    }

    /// A node with a valid certificate.
    pub(crate) fn node(&self) -> Tls {
        self.tls(&named("a node"), self)
    }

    /// A node with a certificate of this CA that accepts another CA.
    pub(crate) fn node_that_trusts(&self, other: &Ca) -> Tls {
        self.tls(&named("a node"), other)
    }

    /// A node whose certificate has expired.
    pub(crate) fn expired(&self) -> Tls {
        let mut params = named("an old node");
        ymd(&mut params, 2001, 2002);
        self.tls(&params, self)
    }
}

/// The three files of a node.
struct Files(tempfile::TempDir);

impl Files {
    fn new(signer: &Ca, ca: &Ca, params: &CertificateParams) -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        let (made, key) = signer.sign(params);
        for (name, text) in [("cert", made.pem()), ("key", key.serialize_pem()), ("ca", ca.pem.clone())] {
            std::fs::write(files.path(name), text).unwrap();
        }
        files.set_mode(0o600);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn set_mode(&self, mode: u32) {
        std::fs::set_permissions(self.path("key"), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn open(&self) -> Result<Tls, TlsError> {
        Tls::from_files(&self.path("cert"), &self.path("key"), &self.path("ca"))
    }
}

#[test]
fn three_files_are_read_and_nothing_of_the_key_is_shown() {
    let ca = Ca::new();
    let files = Files::new(&ca, &ca, &named("a node"));
    for mode in [0o600, 0o400, 0o640] {
        files.set_mode(mode);
        assert_eq!(format!("{:?}", files.open().unwrap()), "Tls(its key is not shown)");
    }
}

#[test]
fn files_that_do_not_match_are_reported_at_the_start() {
    let (ca, other) = (Ca::new(), Ca::new());
    let (mut old, mut new, mut half) = (named("a node"), named("a node"), named("a node"));
    ymd(&mut old, 2001, 2002);
    ymd(&mut new, 4000, 4001);
    half.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for (signer, params, word) in [
        (&other, &named("a node"), "was not signed by the CA in"),
        (&ca, &old, "it has expired; have the CA sign a new one"),
        (&ca, &new, "not valid yet"),
        (&ca, &half, "both serverAuth and clientAuth"),
    ] {
        let error = Files::new(signer, &ca, params).open().unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let files = Files::new(&ca, &ca, &named("a node"));
    std::fs::write(files.path("key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let error = files.open().unwrap_err().to_string();
    assert!(error.contains("the key is another certificate's"), "{error}");
}

#[test]
fn what_is_no_certificate_or_key_is_refused_with_what_to_do() {
    let ca = Ca::new();
    for (name, word) in
        [("cert", "holds no certificate"), ("key", "holds no private key"), ("ca", "holds no certificate")]
    {
        let files = Files::new(&ca, &ca, &named("a node"));
        std::fs::write(files.path(name), "something else").unwrap();
        let error = files.open().unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("PEM"), "{error}");
        std::fs::remove_file(files.path(name)).unwrap();
        assert!(files.open().unwrap_err().to_string().contains(files.path(name).to_str().unwrap()));
    }
    let files = Files::new(&ca, &ca, &named("a node"));
    for mode in [0o644, 0o620, 0o601] {
        files.set_mode(mode);
        let error = files.open().unwrap_err().to_string();
        assert!(error.contains("chmod 600") && error.contains(&format!("{mode:04o}")), "{error}");
    }
}

/// docs/OPERATING.md says how to make the files. This runs its commands.
#[test]
fn the_commands_of_the_manual_make_what_is_taken() {
    if std::process::Command::new("openssl").arg("version").output().is_err() {
        println!("no openssl here: skipped");
        return;
    }
    let manual = include_str!("../../../../docs/OPERATING.md");
    let commands: Vec<&str> = manual.lines().filter(|line| line.starts_with("openssl ")).collect();
    assert_eq!(commands.len(), 3);
    let folder = tempfile::tempdir().unwrap();
    let mut shell = std::process::Command::new("bash");
    let made = shell.arg("-ec").arg(commands.join("\n")).current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let path = |name: &str| folder.path().join(name);
    Tls::from_files(&path("node.pem"), &path("node.key"), &path("ca.pem")).unwrap();
}
