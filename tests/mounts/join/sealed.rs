//! A fleet under TLS, set up as in the manual: certificates made with openssl, nodes with them and one
//! without.

use std::path::{Path, PathBuf};

use covey_tests::program::{covey_run, environment};
use covey_tests::{Need, manual, requires};

use super::{BUCKET, World, soon, troubles};

/// The commands of docs/OPERATING.md, run by bash because of its `<(...)`.
fn make_certificates(folder: &Path) {
    let script = r#"
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=my fleet" -keyout ca.key -out ca.pem
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=node-7" -keyout node.key -out node.csr
        openssl x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 -extfile <(echo extendedKeyUsage=serverAuth,clientAuth) -out node.pem
        chmod 600 node.key"#;
    let manual = manual::operating();
    let ours = script.lines().map(str::trim).filter(|line| line.starts_with("openssl"));
    ours.for_each(|line| assert!(manual.contains(line), "the manual does not have this line: {line}"));
    let done = manual::bash(script, folder, &[]);
    assert!(done.status.success(), "{done:?}");
}

/// Nodes with certificates of one CA share what they read. A node without a certificate, or with another
/// CA's, gets nothing from them, is told so, and reads from the store.
#[test]
fn a_fleet_under_tls_keeps_others_out() {
    requires!(Need::Covey, Need::Program("openssl"));
    environment(s3server::environment());
    let world = World::new();
    let (ours, theirs) = (world.path("ours"), world.path("theirs"));
    let words = |folder: &PathBuf| {
        std::fs::create_dir(folder).unwrap();
        make_certificates(folder);
        let file = |name: &str| folder.join(name).display().to_string();
        ["--tls-cert", &file("node.pem"), "--tls-key", &file("node.key"), "--tls-ca", &file("ca.pem")]
            .map(str::to_owned)
    };
    let (ours, theirs) = (words(&ours), words(&theirs));
    let mount = |name: &str, join: Option<&str>, words: &[String]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        world.mount(name, join, &words)
    };
    let first = mount("a", None, &ours);
    let address = first.address();
    let second = mount("b", Some(&address), &ours);
    soon("they see each other", || first.nodes() == 2 && second.nodes() == 2);
    first.read_all(&world);
    second.read_all(&world);
    let status = second.json("status");
    // A blob that the first node is still writing to its disk counts as in flight.
    let (peer, origin) = (second.hits("peer") + second.hits("stream"), second.hits("origin"));
    assert!(peer > 0 && origin <= 2 + troubles(&status["fleet"]), "what a peer has comes from it: {status}");
    // The same from outside.
    let secret = world.secret();
    let look = |words: &[String]| {
        let asked = ["peers", "--join", &address, "--secret-file", secret.to_str().unwrap()];
        covey_run(&[&asked.map(str::to_owned)[..], words].concat())
    };
    let seen = look(&ours);
    assert!(seen.status.success(), "{seen:?}");
    for stranger in [&[][..], &theirs[..]] {
        let seen = look(stranger);
        let says = |word: &str| seen.stderr.contains(word);
        assert!(
            seen.code() == 1 && (says("TLS") || says("certificate")) && !says("--secret-file"),
            "{seen:?}"
        );
    }
    // A node without a certificate, or with another CA's, exchanges nothing with the others. It still reads.
    for (name, words) in [("c", &[][..]), ("d", &theirs[..])] {
        let stranger = mount(name, Some(&address), words);
        stranger.read_all(&world);
        let got = stranger.hits("peer") + stranger.hits("stream") + stranger.hits("part");
        assert_eq!(got, 0, "{name} got bytes from nodes that should not talk to it");
    }
    // A key without its certificate is an error that is reported before anything listens.
    let at = world.path("e");
    std::fs::create_dir(&at).unwrap();
    let tree = format!("s3://{BUCKET}/prefix@latest");
    let mut half = vec!["mount".to_owned(), tree, at.display().to_string()];
    half.extend(world.words(&world.server.endpoint(), "e", Some(&address)));
    half.extend(ours[2..4].iter().cloned());
    let done = covey_run(&half);
    assert!(done.code() == 2 && done.stderr.contains("--tls-cert"), "{done:?}");
}
