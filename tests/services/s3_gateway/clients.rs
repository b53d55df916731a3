//! More clients, at length: `make test-s3-clients`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use covey_tests::{Need, Volume, requires, run_ok, scratch};

use super::{Gateway, WRITER, python_or_skip, script};

/// How long one client may take.
const LONG: Duration = Duration::from_secs(900);

fn with_gateway(work: impl FnOnce(&Gateway, &Path)) {
    let folder = scratch();
    let volume = Volume::below(&folder.path().join("data"), &[]);
    let gateway = Gateway::start(&[format!("data={}", volume.source.display())], &[]);
    let work_folder = scratch();
    work(&gateway, work_folder.path());
    gateway.end();
    volume.must_be_clean();
}

/// Files of several sizes, with names that are not plain.
fn files(folder: &Path) {
    std::fs::create_dir_all(folder.join("a b/c")).unwrap();
    for (name, size) in [("one", 1), ("empty", 0), ("a b/two+%", 100_000), ("a b/c/large", 20 << 20)] {
        let bytes: Vec<u8> = (0..size).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

fn same(a: &Path, b: &Path) {
    run_ok(Command::new("diff").arg("-r").arg(a).arg(b), LONG);
}

fn client(program: &Path, gateway: &Gateway) -> Command {
    let mut command = Command::new(program);
    command.envs([("AWS_ACCESS_KEY_ID", WRITER[0]), ("AWS_SECRET_ACCESS_KEY", WRITER[1])]);
    command.envs([("AWS_REGION", "us-east-1"), ("AWS_DEFAULT_REGION", "us-east-1"), ("no_proxy", "*")]);
    command.env("AWS_ENDPOINT_URL", &gateway.endpoint).env("AWS_CONFIG_FILE", "/dev/null");
    command.env_remove("http_proxy").env_remove("https_proxy").env_remove("AWS_CA_BUNDLE");
    command
}

#[test]
#[ignore = "long; make test-s3-clients"]
fn the_aws_command_line_syncs_both_ways() {
    requires!(Need::Covey, Need::Program("python3"));
    let python = python_or_skip!("awscli");
    with_gateway(|gateway, folder| {
        files(&folder.join("from"));
        let aws =
            |args: &[&str]| run_ok(client(&python.with_file_name("aws"), gateway).args(args), LONG).stdout;
        let (from, to) = (folder.join("from"), folder.join("to"));
        let (from_text, to_text) = (from.to_str().unwrap(), to.to_str().unwrap());
        aws(&["s3", "sync", from_text, "s3://data/tree"]);
        assert_eq!(aws(&["s3", "sync", from_text, "s3://data/tree"]), "");
        aws(&["s3", "sync", "s3://data/tree", to_text]);
        same(&from, &to);
        aws(&["s3", "cp", "--recursive", "s3://data/tree", "s3://data/copy"]);
        assert!(aws(&["s3", "ls", "--recursive", "s3://data/copy/"]).contains("copy/a b/c/large"));
        aws(&["s3", "mv", "s3://data/copy/one", "s3://data/copy/moved"]);
        aws(&["s3", "rm", "--recursive", "s3://data/"]);
        assert_eq!(aws(&["s3", "ls", "s3://data/"]), "");
    });
}

#[test]
#[ignore = "long; make test-s3-clients"]
fn rclone_syncs_and_checks() {
    requires!(Need::Covey, Need::Program("rclone"));
    with_gateway(|gateway, folder| {
        files(&folder.join("from"));
        let (from, to) = (folder.join("from"), folder.join("to"));
        let remote = ":s3,provider=Other,env_auth=true,region=us-east-1:data";
        let rclone = |args: &[&str]| {
            let mut command = client(Path::new("rclone"), gateway);
            command.args(["--config", "/dev/null", "--s3-endpoint", &gateway.endpoint]).args(args);
            run_ok(&mut command, LONG).stdout
        };
        let (from_text, to_text) = (from.to_str().unwrap(), to.to_str().unwrap());
        rclone(&["sync", from_text, &format!("{remote}/tree")]);
        rclone(&["check", "--download", from_text, &format!("{remote}/tree")]);
        rclone(&["sync", &format!("{remote}/tree"), to_text]);
        same(&from, &to);
        rclone(&["move", &format!("{remote}/tree"), &format!("{remote}/moved")]);
        assert!(rclone(&["lsf", "-R", &format!("{remote}/moved")]).contains("a b/c/large"));
        rclone(&["purge", &format!("{remote}/moved")]);
    });
}

#[test]
#[ignore = "long; make test-s3-clients"]
fn s3fs_obstore_and_pyarrow_read_and_write() {
    requires!(Need::Covey, Need::Program("python3"));
    for (package, name) in [("s3fs", "s3fs"), ("obstore", "obstore"), ("pyarrow", "pyarrow")] {
        let python = python_or_skip!(package);
        with_gateway(|gateway, _| script(&python, "others.py", &[name, &gateway.endpoint, "data"]));
    }
}

/// MC= names the program. The name `mc` on PATH may be another program.
#[test]
#[ignore = "long; make test-s3-clients"]
fn the_client_of_minio_copies_mirrors_and_finds() {
    requires!(Need::Covey);
    let Some(program) = std::env::var_os("MC").filter(|program| !program.is_empty()) else {
        covey_tests::say(format_args!("skipped: MC= does not name MinIO's client"));
        return;
    };
    with_gateway(|gateway, folder| {
        files(&folder.join("from"));
        let (from, to) = (folder.join("from"), folder.join("to"));
        let command = |args: &[&str]| {
            let mut command = client(Path::new(&program), gateway);
            command.args(["--disable-pager", "--config-dir"]).arg(folder.join("config")).args(args);
            command
        };
        let mc = |args: &[&str]| run_ok(&mut command(args), LONG).stdout;
        let fails = |args: &[&str], says: &str| {
            let done = covey_tests::run(&mut command(args), LONG);
            assert!(!done.status.success() && done.stderr.contains(says), "{done:?}");
        };
        let (from_text, to_text) = (from.to_str().unwrap(), to.to_str().unwrap());
        mc(&["alias", "set", "covey", &gateway.endpoint, WRITER[0], WRITER[1]]);
        assert!(mc(&["ls", "covey"]).contains("data/"));
        mc(&["mb", "--ignore-existing", "covey/data"]);
        fails(&["mb", "covey/data"], "bucket");
        fails(&["mb", "covey/other"], "a bucket is a volume");
        mc(&["cp", &format!("{from_text}/a b/c/large"), "covey/data/deep/large"]);
        assert!(mc(&["stat", "covey/data/deep/large"]).contains("20 MiB"));
        mc(&["cp", "covey/data/deep/large", "covey/data/copy"]);
        mc(&["cp", "covey/data/copy", &format!("{}/large", folder.display())]);
        same(&from.join("a b/c/large"), &folder.join("large"));
        mc(&["cp", &format!("{from_text}/one"), "covey/data/deep/one"]);
        assert_eq!(mc(&["cat", "covey/data/deep/one"]), "\0");
        mc(&["mirror", from_text, "covey/data/tree"]);
        mc(&["mirror", "covey/data/tree", to_text]);
        same(&from, &to);
        let found = mc(&["find", "covey/data", "--name", "two*"]);
        assert_eq!(found.trim(), "covey/data/tree/a b/two+%");
        assert!(mc(&["ls", "--recursive", "covey/data/tree"]).contains("a b/c/large"));
        mc(&["mv", "covey/data/copy", "covey/data/moved"]);
        mc(&["rm", "covey/data/moved"]);
        fails(&["stat", "covey/data/moved"], "does not exist");
        mc(&["rm", "--recursive", "--force", "covey/data/"]);
        assert_eq!(mc(&["ls", "--recursive", "covey/data"]), "");
    });
}
