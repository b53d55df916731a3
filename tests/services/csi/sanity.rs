//! csi-sanity, the suite of the specification: `CSI_SANITY` is the path of its program. It runs on folders of
//! a shared volume and on exclusive volumes. Published trees have no writers, which the suite wants.

use std::fs;
use std::process::Command;
use std::time::Duration;

use covey_tests::{Need, requires, requires_server, run, say};

use super::rig::{Driver, shared_volume};

fn suite(driver: &mut Driver, parameters: &str) {
    fs::write(driver.path("parameters"), parameters).unwrap();
    let mut suite = Command::new(std::env::var_os("CSI_SANITY").unwrap());
    suite.arg("--csi.endpoint").arg(driver.path("sock"));
    suite.arg("--csi.testvolumeparameters").arg(driver.path("parameters"));
    suite.arg("--csi.mountdir").arg(driver.path("mnt")).arg("--csi.stagingdir").arg(driver.path("stage"));
    suite.arg("--ginkgo.no-color");
    let done = run(&mut suite, Duration::from_secs(600));
    let counts =
        done.stdout.lines().rev().find(|line| line.contains(" Passed | ")).unwrap_or_default().to_owned();
    assert!(done.status.success() && counts.contains(" 0 Failed"), "{}\n{}", done.stdout, driver.log());
    driver.end();
    assert_eq!(driver.mounts(), Vec::<std::path::PathBuf>::new(), "{}", driver.log());
    say(format_args!("csi-sanity: {counts}"));
}

#[test]
fn csi_sanity_finds_no_failure_on_a_shared_volume() {
    requires!(Need::Root, Need::Covey, Need::Env("CSI_SANITY"));
    let server = requires_server!();
    let mut driver = Driver::new();
    let address = shared_volume(&server, "covey", driver.folder.path());
    suite(&mut driver, &format!("volume: \"{address}\"\n"));
}

#[test]
fn csi_sanity_finds_no_failure_on_exclusive_volumes() {
    requires!(Need::Root, Need::Covey, Need::Env("CSI_SANITY"));
    suite(&mut Driver::new(), "exclusive: \"true\"\n");
}
