//! A registry with TLS and a password, at an address that is not this machine's loopback address.

use std::fs;
use std::process::Command;
use std::time::Duration;

use covey_tests::{Need, Volume, requires, run_ok};

use super::build::{Layout, here, layer};

/// `user:password` of the registry's file, by bcrypt: covey, of-length-9.
const PASSWORDS: &str = "covey:$2b$04$alkpHJ0WkNzs0vdls/YgI.Ez2rujbRLYwBIzkOFoGz1fB0NpjqGp6\n";

/// What runs in a network namespace of its own: `$covey`, `$place` and `$source` are set. Each import prints
/// its name and its exit status; what it says goes to a file of that name.
const SCRIPT: &str = r#"
set -u
ip link set lo up && ip addr add 10.99.0.1/32 dev lo || exit 9
# An authority of its own, and the registry's certificate from it.
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority 2>/dev/null || exit 9
openssl req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=registry 2>/dev/null || exit 9
echo subjectAltName=IP:10.99.0.1 > names
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 2 -extfile names \
    2>/dev/null || exit 9
cat > registry.yml <<END
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $PWD/registry}}
auth: {htpasswd: {realm: registry, path: $PWD/passwords}}
http: {addr: "10.99.0.1:5443", tls: {certificate: $PWD/cert.pem, key: $PWD/key.pem}}
END
docker-registry serve registry.yml > registry.log 2>&1 &
registry=$!
trap 'kill $registry' EXIT
for _ in $(seq 100); do
    openssl s_client -connect 10.99.0.1:5443 </dev/null >/dev/null 2>&1 && break
    sleep 0.1
done
image=10.99.0.1:5443/some/app:1
mkdir certs && cp ca.pem certs/ca.crt
skopeo copy -q --dest-cert-dir certs --dest-creds covey:of-length-9 "$source" docker://$image || exit 9
import() {
    name=$1
    shift
    env "$@" "$covey" import docker://$image "$place" --name "$name" > "$name" 2>&1
    echo "$name $?"
}
user=COVEY_REGISTRY_USER=covey password=COVEY_REGISTRY_PASSWORD=of-length-9 certificates=SSL_CERT_FILE=$PWD/ca.pem
import unknown $user $password
import nobody $certificates
import wrong $certificates $user COVEY_REGISTRY_PASSWORD=other
import right $certificates $user $password
skopeo login --cert-dir certs --authfile auth.json -u covey -p of-length-9 10.99.0.1:5443 >/dev/null || exit 9
import login $certificates REGISTRY_AUTH_FILE=$PWD/auth.json
"#;

/// The certificates of SSL_CERT_FILE are believed, and no others; a password comes from the environment or
/// from the file of a login. A refusal says which of them it is.
#[test]
fn a_registry_with_tls_and_a_password() {
    requires!(
        Need::Covey,
        Need::Root,
        Need::Program("docker-registry"),
        Need::Program("skopeo"),
        Need::Program("openssl"),
        Need::Program("ip"),
        Need::Program("unshare")
    );
    let folder = covey_tests::scratch();
    let at = folder.path();
    let layout = Layout::new(&at.join("app"));
    layout.image("1", &here(), &[layer(&[(b'0', "file", b"1")])]);
    fs::write(at.join("passwords"), PASSWORDS).unwrap();
    let volume = Volume::below(at, &[]);
    let covey = covey_tests::program::covey();
    let mut shell = Command::new("unshare");
    shell.args(["--net", "sh", "-c", SCRIPT]).current_dir(at);
    shell.env("covey", covey.get_program()).env("source", layout.source("1"));
    shell.env("place", format!("{}:/images", volume.source.display())).env("HOME", at);
    shell.env_remove("COVEY_REGISTRY_USER").env_remove("COVEY_REGISTRY_PASSWORD").env_remove("https_proxy");
    shell.env_remove("HTTPS_PROXY");
    let done = run_ok(&mut shell, Duration::from_secs(120));
    assert_eq!(done.stdout, "unknown 1\nnobody 1\nwrong 1\nright 0\nlogin 0\n", "{done:?}");
    let said = |name: &str| fs::read_to_string(at.join(name)).unwrap();
    assert!(said("unknown").contains("SSL_CERT_FILE="), "{}", said("unknown"));
    assert!(said("nobody").contains("log in with"), "{}", said("nobody"));
    assert!(said("wrong").contains("COVEY_REGISTRY_USER"), "{}", said("wrong"));
}
