//! A volume with an S3 server as its origin, and files with known bytes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use covey_tests::program::{covey_ok, environment};
use covey_tests::{Mounted, Rng, Volume};
use s3server::{BUCKET, Proxy, Server};

/// The server, the proxy in front of it, and a volume formatted there.
pub struct Remote {
    pub server: Server,
    pub proxy: Proxy,
    pub volume: Volume,
    folder: tempfile::TempDir,
}

impl Remote {
    pub fn new(seed: u64) -> Remote {
        environment(s3server::environment());
        let server = Server::start();
        let proxy = Proxy::start(server.address(), seed);
        let folder = covey_tests::scratch();
        let place = place(&proxy, "prefix");
        let volume = Volume::below(folder.path(), &place.iter().map(String::as_str).collect::<Vec<_>>());
        Remote { server, proxy, volume, folder }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn source(&self) -> &str {
        self.volume.source.to_str().unwrap()
    }

    /// The arguments that name a prefix of the store.
    pub fn place(&self, prefix: &str) -> Vec<String> {
        place(&self.proxy, prefix)
    }

    pub fn flush(&self, more: &[&str]) {
        covey_ok(&[&["flush", self.source()], more].concat());
    }

    /// Evicts every cached copy of the node.
    pub fn evict(&self) {
        covey_ok(&["cache", "evict", "--all", self.source()]);
    }

    pub fn status(&self) -> serde_json::Value {
        covey_ok(&["status", self.source(), "--json"]).json()
    }

    /// Checks that everything written is in the store, and can be read from there alone. The volume must not
    /// be mounted.
    pub fn must_come_back_from_the_store(&self, files: &Files, seed: u64) {
        self.volume.must_be_recoverable();
        self.flush(&[]);
        assert_eq!(std::fs::read_dir(self.volume.source.join("upload")).unwrap().count(), 0);
        self.evict();
        let mounted = self.volume.mount();
        files.must_all_read(&mounted);
        let cache = &self.status()["far"]["cache"];
        let far_reads = cache["far_reads"].as_u64().unwrap() + cache["memory_reads"].as_u64().unwrap();
        assert!(files.len() == 0 || far_reads > 0, "COVEY_SEED={seed}: {cache}");
        mounted.umount();
    }
}

fn place(proxy: &Proxy, prefix: &str) -> Vec<String> {
    let origin = format!("s3://{BUCKET}/{prefix}");
    ["--origin", &origin, "--endpoint", &proxy.endpoint()].map(str::to_owned).to_vec()
}

/// Files whose close(2) returned: name, size, and the seed of their bytes.
#[derive(Default)]
pub struct Files(BTreeMap<String, (usize, u64)>);

fn bytes_of(size: usize, seed: u64) -> Vec<u8> {
    Rng::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(size as u64)).bytes(size)
}

impl Files {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Writes a file. It counts once it is closed without an error.
    pub fn write(&mut self, mounted: &Mounted, name: &str, size: u64, seed: u64) -> io::Result<()> {
        let bytes = bytes_of(size as usize, seed);
        let mut file = std::fs::File::create(mounted.join(name))?;
        file.write_all(&bytes)?;
        drop(file);
        self.0.insert(name.to_owned(), (size as usize, seed));
        Ok(())
    }

    /// Writes small and large files for a while. Returns how many.
    pub fn write_until(&mut self, mounted: &Mounted, rng: &mut Rng, time: Duration) -> usize {
        let until = Instant::now() + time;
        let mut written = 0;
        while Instant::now() < until {
            let size = if rng.one_in(10) { rng.length(6_000_000) } else { rng.length(20_000) };
            let name = format!("f{}", rng.below(500));
            // While a file is replaced, it has neither the old nor the new contents for certain.
            self.0.remove(&name);
            if self.write(mounted, &name, size, rng.u64()).is_ok() {
                written += 1;
            }
        }
        written
    }

    /// Removes a file.
    pub fn remove(&mut self, mounted: &Mounted, name: &str) {
        std::fs::remove_file(mounted.join(name)).unwrap();
        self.0.remove(name);
    }

    pub fn must_read(&self, mounted: &Mounted, name: &str) {
        let (size, seed) = self.0[name];
        let found = std::fs::read(mounted.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            found == bytes_of(size, seed),
            "{name} holds {} other bytes, not the {size} written",
            found.len()
        );
    }

    pub fn must_all_read(&self, mounted: &Mounted) {
        self.0.keys().for_each(|name| self.must_read(mounted, name));
    }
}
