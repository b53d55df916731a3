//! What the host serves: volumes, and plain folders.

use std::path::{Path, PathBuf};

use covey_tests::program::{covey, covey_ok};
use tempfile::TempDir;

use crate::machine::{address, vhost_user};
use crate::process::{Process, until};

/// The port of the volume or folder under test.
pub const VOLUME: u32 = 5001;
/// The port of the folder with what a test needs in the guest. The next one is that of the host's /usr.
pub const DATA: u32 = 5002;

/// A folder with a volume, a folder of data, and the sockets and logs of guests.
pub struct Place {
    dir: TempDir,
}

impl Default for Place {
    fn default() -> Place {
        Place::new()
    }
}

impl Place {
    /// An empty volume and an empty folder.
    pub fn new() -> Place {
        let place = Place { dir: covey_tests::scratch() };
        covey_ok(&["format", place.path("volume").to_str().unwrap()]);
        std::fs::create_dir(place.path("data")).unwrap();
        place
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Serves the volume to the guest of this name.
    pub fn volume(&self, guest: &str, more: &[&str]) -> Server {
        Server::start(self.folder(), &self.path("volume"), &address(self.folder(), guest, VOLUME), more)
    }

    /// Serves the volume to the virtiofs device with this tag.
    pub fn virtiofs(&self, tag: &str, more: &[&str]) -> Server {
        Server::start(self.folder(), &self.path("volume"), &vhost_user(self.folder(), tag), more)
    }

    /// Serves the folder of data and the host's /usr to the guest of this name, which may not change them.
    pub fn programs(&self, guest: &str) -> [Server; 2] {
        self.programs_at(guest, DATA)
    }

    /// The same at this port and the next one.
    pub fn programs_at(&self, guest: &str, port: u32) -> [Server; 2] {
        let options = ["--one", "--read-only"];
        [(self.path("data"), port), (PathBuf::from("/usr"), port + 1)].map(|(folder, port)| {
            Server::start(self.folder(), &folder, &address(self.folder(), guest, port), &options)
        })
    }
}

/// `covey serve`.
pub struct Server {
    process: Process,
}

impl Server {
    /// Serves `source` at an address, and waits until it listens.
    pub fn start(folder: &Path, source: &Path, on: &str, more: &[&str]) -> Server {
        let mut command = covey();
        command.arg("serve").arg(source).args(["--on", on]).args(more);
        let log = folder.join(format!("serve-{}.log", base::random::u64()));
        let server = Server { process: Process::start(&mut command, &log) };
        until("the server listens", || {
            let log = server.log();
            assert!(!log.contains("error") && !log.contains("cannot"), "{log}");
            log.contains("Ctrl-C")
        });
        server
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills it as a crash does.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// Ends it in good order.
    pub fn end(mut self) {
        let status = self.process.end();
        assert_eq!(status, 0, "{}", self.log());
    }
}
