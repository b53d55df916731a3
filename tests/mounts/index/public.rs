//! Buckets at endpoints that only a tree names: requests without keys, over TLS.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use covey_tests::program::{covey, run, run_ok};
use covey_tests::{Need, Volume, requires};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::Mount;

const PATIENCE: Duration = Duration::from_secs(120);

const AZURE: &str = "<EnumerationResults><Blobs><Blob><Name>d/f</Name><Properties>\
    <Last-Modified>Sat, 28 Nov 2026 00:00:00 GMT</Last-Modified><Etag>\"1\"</Etag><Content-Length>5</Content-Length>\
    </Properties></Blob></Blobs><NextMarker/></EnumerationResults>";
const OTHERS: &str = "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>d/f</Key>\
    <LastModified>2026-11-28T00:00:00.000Z</LastModified><ETag>\"1\"</ETag><Size>5</Size></Contents></ListBucketResult>";

/// A store of every kind, with one object, `d/f`. It serves until the process ends.
struct Store {
    endpoint: String,
    /// The heads of the requests.
    heads: Arc<Mutex<Vec<String>>>,
    /// Where objects are instead.
    moved: Arc<Mutex<VecDeque<String>>>,
}

impl Store {
    /// With TLS, if there is a configuration for it.
    fn start(tls: Option<Arc<ServerConfig>>) -> Store {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = format!("{scheme}://{}", listener.local_addr().unwrap());
        let (heads, moved) =
            (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<VecDeque<String>>>::default());
        let (all, to) = (heads.clone(), moved.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (tls, all, to) = (tls.clone(), all.clone(), to.clone());
                std::thread::spawn(move || match tls {
                    None => serve(stream, &all, &to),
                    Some(tls) => {
                        serve(StreamOwned::new(ServerConnection::new(tls).unwrap(), stream), &all, &to)
                    }
                });
            }
        });
        Store { endpoint, heads, moved }
    }

    /// The requests since the last call.
    fn heads(&self) -> Vec<String> {
        std::mem::take(&mut *self.heads.lock().unwrap())
    }
}

fn serve(mut stream: impl Read + Write, heads: &Mutex<Vec<String>>, moved: &Mutex<VecDeque<String>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8(std::mem::take(&mut head)).unwrap();
        let first = text.lines().next().unwrap().to_owned();
        heads.lock().unwrap().push(text);
        let lists = first.contains("comp=list") || first.contains("prefix=");
        let to = if lists { None } else { moved.lock().unwrap().pop_front() };
        let (status, body) = match &to {
            Some(to) => (format!("307 Temporary Redirect\r\nLocation: {to}/theirs/d/f"), ""),
            None if first.contains("comp=list") => ("200 OK".to_owned(), AZURE),
            None if lists => ("200 OK".to_owned(), OTHERS),
            None => ("200 OK".to_owned(), "hello"),
        };
        let shown = if first.starts_with("HEAD") { "" } else { body };
        let answer = format!(
            "HTTP/1.1 {status}\r\nETag: \"1\"\r\nLast-Modified: Sat, 28 Nov 2026 00:00:00 GMT\r\n\
             Content-Type: application/xml\r\nContent-Length: {}\r\n\r\n{shown}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

/// A certificate for 127.0.0.1, and the file of the authority that signed it.
fn certificate(folder: &Path) -> (Arc<ServerConfig>, PathBuf) {
    let (mut params, key) = (rcgen::CertificateParams::default(), rcgen::KeyPair::generate().unwrap());
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    let file = folder.join("authority.pem");
    std::fs::write(&file, authority.pem()).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let own = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let made = params.signed_by(&own, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::try_from(own.serialize_der()).unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![made.der().clone()], key).unwrap();
    (Arc::new(config), file)
}

/// The program, on a machine with nothing but these keys.
fn with_keys(authority: &Path, folder: &Path, keys: &[(&str, &str)]) -> Command {
    let mut command = covey();
    for (name, _) in std::env::vars() {
        if ["AWS_", "AZURE_", "GOOGLE_", "COVEY_BUCKET"].iter().any(|start| name.starts_with(start)) {
            command.env_remove(name);
        }
    }
    command.env("SSL_CERT_FILE", authority).env("HOME", folder).env("AWS_EC2_METADATA_DISABLED", "true");
    command.env("AWS_REGION", "us-east-1").envs(keys.iter().copied());
    command
}

const THEIRS: [(&str, &str); 5] = [
    ("AWS_ACCESS_KEY_ID", "THEIRS"),
    ("AWS_SECRET_ACCESS_KEY", "THEIRSECRET"),
    ("AZURE_STORAGE_ACCOUNT_NAME", "theirs"),
    ("AZURE_STORAGE_ACCOUNT_KEY", "dGhlaXJz"),
    ("GOOGLE_BEARER_TOKEN", "THEIR-BEARER"),
];

const MINE: [(&str, &str); 8] = [
    ("AWS_ACCESS_KEY_ID", "MINE"),
    ("AWS_SECRET_ACCESS_KEY", "MINEMINE"),
    ("AWS_SESSION_TOKEN", "MINE-SESSION"),
    ("AWS_REQUEST_PAYER", "true"),
    ("AZURE_STORAGE_ACCOUNT_NAME", "mine"),
    ("AZURE_STORAGE_SAS_TOKEN", "sv=2022-11-02&sig=MINE-SAS"),
    ("AZURE_STORAGE_ACCOUNT_KEY", "bWluZQ=="),
    ("GOOGLE_BEARER_TOKEN", "MINE-BEARER"),
];

/// What a request with keys has. `x-amz-content-sha256` and `x-ms-version` are of the protocols.
const OF_KEYS: [&str; 11] = [
    "authorization",
    "mine",
    "token",
    "x-amz-date",
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-signature",
    "x-amz-request-payer",
    "x-goog-",
    "sig=",
    "sv=",
];

/// The bucket of a tree is read without keys where only the tree names the endpoint, if everybody may read
/// it. Nothing of the machine's keys arrives there, the user hears of it, and with the option keys are sent.
#[test]
fn regression_a_public_bucket_at_an_endpoint_of_the_tree_is_read_without_keys() {
    requires!(Need::Covey);
    let folder = covey_tests::scratch();
    let (tls, authority) = certificate(folder.path());
    let store = Store::start(Some(tls));
    for (kind, keys) in [("s3", &MINE[..]), ("az", &MINE[..]), ("gs", &MINE[..]), ("s3", &[])] {
        let below = tempfile::tempdir_in(folder.path()).unwrap();
        let volume = Volume::below(below.path(), &[]);
        let tree = format!("file:{}@data", volume.source.join("blobs").display());
        let mut index = with_keys(&authority, below.path(), &THEIRS);
        let from = format!("{kind}://theirs/d");
        index.args(["index", "--endpoint", &store.endpoint, &from]).arg(&volume.source).arg("data");
        run_ok(&mut index, PATIENCE);
        assert!(store.heads().iter().any(|head| head.to_lowercase().contains("authorization")), "{kind}");
        let mount = |name: &str, more: &[&str]| {
            let at = below.path().join(name);
            std::fs::create_dir_all(&at).unwrap();
            let mut command = with_keys(&authority, below.path(), keys);
            command.args(["mount", "-d", "--cache"]).arg(below.path().join(format!("cache-{name}")));
            (run(command.args(more).arg(&tree).arg(&at), PATIENCE), at)
        };
        let (done, at) = mount("one", &[]);
        assert_eq!(done.code(), 0, "{kind}: {done:?}");
        let said = format!("{}{}", done.stdout, done.stderr);
        let line = format!("requests to {} are not signed", store.endpoint);
        assert_eq!(said.matches(&line).count(), 1, "{said}");
        assert!(said.contains(&format!("-o bucket_endpoint={}", store.endpoint)), "{said}");
        let mounted = Mount { at, mounted: true };
        assert_eq!(std::fs::read(mounted.join("f")).unwrap(), b"hello", "{kind}");
        let status = |words: &[&str]| run_ok(covey().args(words).arg(mounted.path()), PATIENCE);
        let json = status(&["status", "--json"]).json();
        assert_eq!(json["far"]["unsigned"], store.endpoint.as_str(), "{json}");
        let text = status(&["status"]).stdout;
        assert!(text.contains("without keys") && text.contains(&store.endpoint), "{text}");
        mounted.umount();
        let heads = store.heads();
        let is_of_object = |head: &String| head.contains("/d/f") || head.contains("/d%2Ff");
        assert!(heads.iter().any(is_of_object), "{kind}: {heads:?}");
        for head in heads {
            let lower = head.to_lowercase();
            let found = OF_KEYS.iter().find(|word| lower.contains(*word));
            assert_eq!(found, None, "{kind}: {head}");
        }
        if keys.is_empty() {
            continue;
        }
        let (done, at) = mount("two", &["-o", &format!("bucket_endpoint={}", store.endpoint)]);
        assert_eq!(done.code(), 0, "{kind}: {done:?}");
        assert!(!format!("{}{}", done.stdout, done.stderr).contains("not signed"), "{done:?}");
        let mounted = Mount { at, mounted: true };
        assert_eq!(std::fs::read(mounted.join("f")).unwrap(), b"hello", "{kind}");
        mounted.umount();
        let signed = |head: &String| OF_KEYS.iter().any(|word| head.to_lowercase().contains(word));
        assert!(store.heads().iter().all(signed), "{kind}");
    }
}

/// A store that sends a reader elsewhere is not followed: to no other host, and to nothing without TLS.
#[test]
fn a_redirect_of_such_a_bucket_is_not_followed() {
    requires!(Need::Covey);
    let folder = covey_tests::scratch();
    let (tls, authority) = certificate(folder.path());
    let (store, other, clear) =
        (Store::start(Some(tls.clone())), Store::start(Some(tls)), Store::start(None));
    let volume = Volume::below(folder.path(), &[]);
    let mut index = with_keys(&authority, folder.path(), &THEIRS);
    index.args(["index", "--endpoint", &store.endpoint, "s3://theirs/d"]).arg(&volume.source).arg("data");
    run_ok(&mut index, PATIENCE);
    let at = folder.path().join("at");
    std::fs::create_dir_all(&at).unwrap();
    let mut mount = with_keys(&authority, folder.path(), &MINE);
    mount.args(["mount", "-d", "-o", "deadline=5", "--cache"]).arg(folder.path().join("cache"));
    run_ok(mount.arg(format!("file:{}@data", volume.source.join("blobs").display())).arg(&at), PATIENCE);
    let mounted = Mount { at, mounted: true };
    for to in [&other.endpoint, &clear.endpoint] {
        store.moved.lock().unwrap().extend(std::iter::repeat_n(to.clone(), 1000));
        assert!(std::fs::read(mounted.join("f")).is_err(), "{to}");
        store.moved.lock().unwrap().clear();
    }
    assert!(store.heads().iter().any(|head| head.contains("/d/f")));
    assert!(other.heads().is_empty() && clear.heads().is_empty());
    mounted.umount();
}
