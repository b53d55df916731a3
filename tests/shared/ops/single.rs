//! A volume of one node that is promoted.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use covey_tests::program::{covey, run_ok};
use covey_tests::shared::{Node, Shared};
use covey_tests::tree;

use super::gate::{Gate, Then};
use super::publish::LIMIT;

/// A volume of one node, and the address under which it is promoted.
pub struct Single<'a> {
    pub shared: &'a Shared,
    pub name: String,
}

impl<'a> Single<'a> {
    /// An empty volume with an origin of its own.
    pub fn new(shared: &'a Shared, name: &str) -> Single<'a> {
        let single = Single { shared, name: name.to_owned() };
        let origin = format!("file:{}", single.at("origin").display());
        run_ok(covey().arg("format").arg(single.folder()).args(["--origin", &origin]), LIMIT);
        single
    }

    pub fn at(&self, what: &str) -> PathBuf {
        self.shared.folder.path().join(format!("{}-{what}", self.name))
    }

    pub fn folder(&self) -> PathBuf {
        self.shared.folder.path().join(&self.name)
    }

    pub fn text(&self) -> String {
        self.folder().display().to_string()
    }

    /// Mounts the folder.
    pub fn mount(&self, name: &str) -> Node {
        self.shared.add_of(&self.text(), &format!("{}-{name}", self.name))
    }

    /// Mounts the shared volume on another node.
    pub fn node(&self, name: &str) -> Node {
        self.shared.add_of(&self.address(), &format!("{}-{name}", self.name))
    }

    pub fn address(&self) -> String {
        self.shared.address.replace("volume=work", &format!("volume=v-{}", self.name))
    }

    /// Its address behind a relay.
    pub fn through(&self, gate: &Gate) -> String {
        self.address().replace(&format!(":{}/", self.shared.server.port()), &format!(":{}/", gate.port()))
    }

    pub fn promote(&self, address: &str) -> Command {
        let mut command = covey();
        command.args(["promote", "--json"]).arg(self.folder()).arg(address);
        command
    }

    pub fn tree(&self, name: &str) -> String {
        format!("file:{}@{name}", self.at("origin").display())
    }

    pub fn is_nodes(&self) -> bool {
        fs::read_to_string(self.folder().join("covey.json")).unwrap().contains("postgres://")
    }
}

/// Inode numbers and all times, which the comparison of trees leaves out.
pub fn numbers(root: &Path) -> BTreeMap<PathBuf, (u64, i64, i64, i64, i64)> {
    let mut found = BTreeMap::new();
    for path in tree::read(root).keys() {
        let at = fs::symlink_metadata(root.join(path)).unwrap();
        let all = (at.ino(), at.mtime(), at.mtime_nsec(), at.ctime(), at.ctime_nsec());
        found.insert(path.clone(), all);
    }
    found
}

/// A small volume.
pub fn small<'a>(shared: &'a Shared, name: &str, source: &Path) -> Single<'a> {
    let single = Single::new(shared, name);
    run_ok(covey().arg("import").arg(source).arg(format!("{}:/tree", single.text())), LIMIT);
    run_ok(covey().args(["publish", &single.text(), "first"]), LIMIT);
    single
}

/// A relay that passes everything on.
pub fn gate_of(shared: &Shared) -> Gate {
    Gate::new(shared.server.port(), u64::MAX, Then::Hold)
}

/// One of the blobs of an origin.
pub fn a_blob(origin: &Path) -> PathBuf {
    let inside = |dir: PathBuf| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let folders = inside(origin.to_owned()).filter(|path| path.is_dir());
    let is_blob = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 64);
    folders.flat_map(inside).find(is_blob).unwrap()
}
