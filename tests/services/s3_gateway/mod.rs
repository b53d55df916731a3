//! The S3 gateway, as clients use it: `covey s3` with a volume and a published tree as buckets, and `covey
//! mount --s3`, with programs that many people have.
//!
//! The clients come from PyPI into a folder of the user's cache, once. Where that is not possible the tests
//! say so and are skipped. The long ones, with more clients, run by `make test-s3-clients`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use covey_tests::program::{covey, covey_ok, wait};
use covey_tests::{Need, Volume, free_port, requires, run_ok, scratch};

mod clients;
mod foreign;
mod looked_at;
mod suite;

const WRITER: [&str; 2] = ["COVEYTESTWRITER", "covey/test+writer=0123456789"];
const READER: [&str; 2] = ["COVEYTESTREADER", "covey/test+reader=0123456789"];
/// How long a gateway may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The file of keys.
fn keys(folder: &Path) -> PathBuf {
    let path = folder.join("keys.toml");
    let [writer, secret] = WRITER;
    let [reader, other] = READER;
    let text = format!(
        "[[key]]\naccess_key = \"{writer}\"\nsecret_key = \"{secret}\"\nbuckets = {{ \"*\" = \"write\" }}\n\n\
         [[key]]\naccess_key = \"{reader}\"\nsecret_key = \"{other}\"\nbuckets = {{ data = \"read\" }}\n"
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// A running `covey s3`. It is ended when it is dropped.
struct Gateway {
    child: Child,
    endpoint: String,
    folder: tempfile::TempDir,
}

impl Gateway {
    /// Serves these sources, `NAME=SOURCE`.
    fn start(sources: &[String], options: &[&str]) -> Gateway {
        let folder = scratch();
        let mut command = covey();
        command.args(["--json", "s3", "--listen", "127.0.0.1:0", "--keys"]).arg(keys(folder.path()));
        let log = fs::File::create(folder.path().join("log")).unwrap();
        command.args(options).args(sources).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let child = command.spawn().unwrap();
        // From here on it is ended whatever happens.
        let mut gateway = Gateway { child, endpoint: String::new(), folder };
        let stdout = gateway.child.stdout.take().unwrap();
        let said = serde_json::Deserializer::from_reader(stdout).into_iter().next();
        let said: serde_json::Value =
            said.and_then(Result::ok).unwrap_or_else(|| panic!("covey s3 did not start: {}", gateway.log()));
        let scheme = if options.contains(&"--tls-cert") { "https" } else { "http" };
        gateway.endpoint = format!("{scheme}://{}", said["address"].as_str().unwrap());
        gateway
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Ends it as a service manager does. It must end in good order.
    fn end(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let status = wait(&mut self.child, PATIENCE);
        assert!(status.is_some_and(|status| status.success()), "{status:?}: {}", self.log());
    }

    /// Kills it.
    fn kill(mut self) {
        self.signal(rustix::process::Signal::KILL);
        wait(&mut self.child, PATIENCE).unwrap();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// A published tree with the file `dir/hello`, as a source.
fn tree(folder: &Path) -> String {
    let from = folder.join("from/dir");
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("hello"), "hello").unwrap();
    let volume = Volume::below(&folder.join("tree"), &[]);
    let place = format!("{}:/dir", volume.source.display());
    covey_ok(&["import".as_ref(), from.as_os_str(), place.as_ref()]);
    covey_ok(&["publish".as_ref(), volume.source.as_os_str(), "latest".as_ref()]);
    format!("file:{}@latest", volume.source.join("blobs").display())
}

/// A Python with these packages, if it can be had.
fn python(packages: &[&str]) -> Result<PathBuf, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let venv = cache.ok_or("a home folder")?.join("covey/s3-clients");
    let program = venv.join("bin/python");
    // Tests in other processes may install packages at the same time.
    std::fs::create_dir_all(venv.parent().unwrap()).unwrap();
    let one = std::fs::File::create(venv.with_extension("lock")).unwrap();
    one.lock().unwrap();
    let quiet = |command: &mut Command| {
        let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    };
    if !program.exists() && !quiet(Command::new("python3").args(["-m", "venv"]).arg(&venv)) {
        return Err("python3 with venv".to_owned());
    }
    for package in packages {
        let has = quiet(Command::new(&program).args(["-m", "pip", "show", "-q", package]));
        let mut install = Command::new(&program);
        install.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", package]);
        if !has && !quiet(&mut install) {
            return Err(format!("the Python package {package}"));
        }
    }
    Ok(program)
}

/// Runs a script of this folder against an endpoint.
fn script(python: &Path, name: &str, args: &[&str]) {
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("services/s3_gateway").join(name)).args(args);
    command.envs([("WRITER_KEY", WRITER[0]), ("WRITER_SECRET", WRITER[1])]);
    command.envs([("READER_KEY", READER[0]), ("READER_SECRET", READER[1])]);
    command.env_remove("http_proxy").env_remove("https_proxy").env("no_proxy", "*");
    let done = run_ok(&mut command, Duration::from_secs(900));
    print!("{}", done.stdout);
}

macro_rules! python_or_skip {
    ($($package:expr),+) => {
        match $crate::s3_gateway::python(&[$($package),+]) {
            Ok(python) => python,
            Err(lacking) => {
                covey_tests::say(format_args!("skipped: lacks {lacking}"));
                return;
            }
        }
    };
}
pub(crate) use python_or_skip;

#[test]
fn boto3_finds_what_it_may_rely_on() {
    requires!(Need::Covey, Need::Program("python3"));
    let python = python_or_skip!("boto3");
    let folder = scratch();
    let volume = Volume::below(&folder.path().join("data"), &[]);
    let sources = [format!("data={}", volume.source.display()), format!("frozen={}", tree(folder.path()))];
    let gateway = Gateway::start(&sources, &["--domain", "s3.test.localhost"]);
    script(&python, "boto.py", &[&gateway.endpoint, "data", "frozen"]);
    gateway.end();
    volume.must_be_clean();
}

#[test]
fn what_was_answered_survives_a_kill_and_the_rest_is_tidied_up() {
    requires!(Need::Covey, Need::Program("python3"));
    let python = python_or_skip!("boto3");
    let volume = Volume::new();
    let sources = [format!("data={}", volume.source.display())];
    let gateway = Gateway::start(&sources, &[]);
    script(&python, "kill.py", &["before", &gateway.endpoint]);
    gateway.kill();
    let gateway = Gateway::start(&sources, &[]);
    script(&python, "kill.py", &["after", &gateway.endpoint]);
    gateway.end();
    volume.must_be_clean();
}

#[test]
fn a_mount_and_its_bucket_show_the_same() {
    requires!(Need::Covey, Need::Program("python3"));
    let python = python_or_skip!("boto3");
    let folder = scratch();
    let volume = Volume::below(&folder.path().join("data"), &[]);
    let mountpoint = folder.path().join("data/mnt");
    let keys = keys(folder.path());
    let port = free_port();
    let mut command = covey();
    command.arg("mount").arg(&volume.source).arg(&mountpoint);
    command.args(["--s3", &format!("127.0.0.1:{port}"), "--s3-bucket", "data", "--s3-keys"]).arg(&keys);
    let log = fs::File::create(folder.path().join("log")).unwrap();
    let mut daemon = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let guard = Unmount(&mountpoint);
    let began = std::time::Instant::now();
    while !covey_tests::proc::is_fuse_mount(&mountpoint)
        || std::net::TcpStream::connect(("127.0.0.1", port)).is_err()
    {
        let log = || fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        assert!(began.elapsed() < PATIENCE && daemon.try_wait().unwrap().is_none(), "{}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let endpoint = format!("http://127.0.0.1:{port}");
    script(&python, "mounted.py", &[&endpoint, "data", mountpoint.to_str().unwrap()]);
    covey_ok(&["umount".as_ref(), mountpoint.as_os_str()]);
    assert!(wait(&mut daemon, PATIENCE).is_some_and(|status| status.success()));
    drop(guard);
    volume.must_be_clean();
}

/// Detaches a mountpoint when a test fails.
struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        covey_tests::volume::detach(self.0);
    }
}

#[test]
fn keys_that_others_may_read_and_wrong_arguments_are_refused() {
    requires!(Need::Covey);
    let folder = scratch();
    let keys = keys(folder.path());
    let says = |args: &[&str], words: &str| {
        let mut command = covey();
        command.args(["s3", "--listen", "127.0.0.1:0", "--keys"]).arg(&keys).args(args);
        let done = covey_tests::run(&mut command, PATIENCE);
        assert!(!done.status.success() && done.stderr.contains(words), "{done:?}");
    };
    says(&["mem:"], "names no bucket");
    says(&["Data=mem:"], "cannot be the name of a bucket");
    says(&["data=mem:", "data=mem:"], "two buckets");
    says(&["data=/nowhere"], "/nowhere");
    says(&["--tls-cert", "/nowhere", "--tls-key", "/nowhere", "data=mem:"], "for TLS");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).unwrap();
    says(&["data=mem:"], "chmod 600");
}

#[test]
fn a_client_that_stands_still_is_cut() {
    requires!(Need::Covey, Need::Program("python3"));
    let python = python_or_skip!("boto3");
    let gateway = Gateway::start(&["data=mem:".to_owned()], &["--patience", "2"]);
    script(&python, "slow.py", &[&gateway.endpoint, "data"]);
    gateway.end();
}

#[test]
fn tls_serves_with_the_given_certificate() {
    requires!(Need::Covey, Need::Program("python3"), Need::Program("openssl"));
    let python = python_or_skip!("boto3");
    let folder = scratch();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
    openssl.args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]);
    openssl.args(["-out", &at("cert"), "-keyout", &at("key")]);
    run_ok(&mut openssl, PATIENCE);
    let gateway =
        Gateway::start(&["data=mem:".to_owned()], &["--tls-cert", &at("cert"), "--tls-key", &at("key")]);
    script(&python, "tls.py", &[&gateway.endpoint, "data", &at("cert")]);
    gateway.end();
}
