//! The S3 tests of the Ceph project, from a given path: `make test-s3tests S3TESTS=path`.
//!
//! They make a bucket for each test. A plugin maps these to buckets that exist ([`s3tests_plugin.py`]). The
//! tests that must pass are listed in `s3tests.txt`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use covey_tests::{Need, requires, run, scratch};

use super::{Gateway, WRITER, python_or_skip};

/// Volumes in memory that serve as buckets. A test uses at most a few.
const BUCKETS: usize = 12;

fn configuration(gateway: &Gateway) -> String {
    let port = gateway.endpoint.rsplit(':').next().unwrap();
    let user = |section: &str, [key, secret]: [&str; 2]| {
        format!(
            "[{section}]\ndisplay_name = {section}\nuser_id = covey\nemail = x@example.com\napi_name = default\n\
             access_key = {key}\nsecret_key = {secret}\n\n"
        )
    };
    format!(
        "[DEFAULT]\nhost = 127.0.0.1\nport = {port}\nis_secure = False\nssl_verify = False\n\n\
         [fixtures]\nbucket prefix = covey-{{random}}-\niam name prefix = covey-\niam path prefix = /covey/\n\n{}{}{}{}{}{}",
        user("s3 main", WRITER),
        user("s3 alt", WRITER),
        user("s3 tenant", WRITER) + "tenant = x\n",
        user("iam", WRITER),
        user("iam root", WRITER),
        user("iam alt root", WRITER),
    )
}

#[test]
#[ignore = "needs S3TESTS=path of ceph/s3-tests; make test-s3tests"]
fn ceph_s3_tests_pass_as_listed() {
    requires!(Need::Covey, Need::Program("python3"), Need::Env("S3TESTS"));
    let python = python_or_skip!(
        "boto3", "pytest", "munch", "pyyaml", "requests", "pytz", "httplib2", "lxml", "isodate"
    );
    let tests = PathBuf::from(std::env::var_os("S3TESTS").unwrap());
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("services/s3_gateway");
    let listed = std::fs::read_to_string(here.join("s3tests.txt")).unwrap();
    let listed = listed.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let sources: Vec<String> = (0..BUCKETS).map(|number| format!("pool-{number}=mem:")).collect();
    let gateway = Gateway::start(&sources, &[]);
    let folder = scratch();
    let conf = folder.path().join("s3tests.conf");
    std::fs::write(&conf, configuration(&gateway)).unwrap();
    let mut command = Command::new(&python);
    command.args([
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "s3tests_plugin",
        "-p",
        "no:cacheprovider",
        "--tb=short",
    ]);
    command.args(listed.map(|name| format!("s3tests/functional/test_s3.py::{name}")));
    command.current_dir(&tests).env("S3TEST_CONF", &conf).env("PYTHONPATH", &here);
    command.env("COVEY_POOL", BUCKETS.to_string()).env("no_proxy", "*").env("PYTHONDONTWRITEBYTECODE", "1");
    let done = run(&mut command, Duration::from_secs(3_600));
    println!("{}", done.stdout);
    assert!(done.status.success(), "{}", done.stderr);
    gateway.end();
}
