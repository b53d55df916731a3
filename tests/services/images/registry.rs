//! The registry of Docker's distribution project, as a process that ends with the test.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use covey_tests::{free_port, run_ok};

/// A process that ends with the test.
pub struct Ends(pub Child);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A registry on this machine. Its log names every request.
pub struct Registry {
    pub host: String,
    log: PathBuf,
    _process: Ends,
}

impl Registry {
    /// Starts it. Its data is below `folder`.
    pub fn start(folder: &Path) -> Registry {
        let port = free_port();
        let (config, log) = (folder.join("registry.yml"), folder.join("registry.log"));
        let data = folder.join("registry");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: 127.0.0.1:{port}}}\n",
            data.display()
        );
        fs::write(&config, text).unwrap();
        let mut registry = Command::new("docker-registry");
        registry.arg("serve").arg(&config).stdin(Stdio::null());
        registry.stdout(fs::File::create(&log).unwrap()).stderr(Stdio::null());
        let process = Ends(registry.spawn().unwrap());
        let there = (0..1200).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        assert!(there, "the registry does not start");
        Registry { host: format!("127.0.0.1:{port}"), log, _process: process }
    }

    /// Copies an image of a layout into it, under a name and a tag.
    pub fn push(&self, source: &str, reference: &str) {
        let mut push = Command::new("skopeo");
        push.args(["copy", "-q", "--dest-tls-verify=false", source]);
        run_ok(push.arg(format!("docker://{}/{reference}", self.host)), Duration::from_secs(60));
    }

    /// How many blobs were asked for since the last call of `forget`: configs and layers.
    pub fn blobs_asked_for(&self) -> usize {
        let text = fs::read(&self.log).unwrap();
        let text = String::from_utf8_lossy(&text);
        text.lines().filter(|line| line.contains("\"GET ") && line.contains("/blobs/sha256:")).count()
    }

    /// Begins to count anew.
    pub fn forget(&self) {
        fs::OpenOptions::new().write(true).open(&self.log).unwrap().set_len(0).unwrap();
    }
}
