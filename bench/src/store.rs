//! An S3 store for the measurements: a MinIO on loopback, with keys created for this run. Everything that is
//! measured reaches it through one [`Relay`], which counts requests and bytes, and simulates a network's
//! latency where that is wanted.
//!
//! MinIO's single-disk form treats each folder of its data as a bucket, so buckets are created with mkdir(2).
//! Each measured program has its own bucket. MinIO's path is given; `make minio` builds it outside the
//! repository.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::time::monotonic;

use crate::Result;
use crate::peer::free_port;
use crate::process;
use crate::relay::Relay;

/// A bucket for each program: Covey, JuiceFS, rclone, s3fs; and one for direct requests.
pub const BUCKETS: [&str; 5] =
    ["covey-volume", "juice-objects", "rclone-files", "s3fs-files", "bare-objects"];

/// The address and keys of a store.
#[derive(Clone)]
pub struct Access {
    /// Its port on loopback.
    pub port: u16,
    /// The access key's id.
    pub key: String,
    /// Its secret.
    pub secret: String,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an S3 store on port {}", self.port)
    }
}

impl Access {
    /// `http://127.0.0.1:PORT`
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Passes the keys to a program in its environment.
    pub fn hand_to(&self, command: &mut Command) {
        command.env("AWS_ACCESS_KEY_ID", &self.key).env("AWS_SECRET_ACCESS_KEY", &self.secret);
        command.env_remove("AWS_SESSION_TOKEN").env_remove("AWS_PROFILE");
    }

    /// Writes the keys in s3fs's format.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_password(&self, file: &Path) -> Result<()> {
        let mut to = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
        Ok(writeln!(to, "{}:{}", self.key, self.secret)?)
    }
}

/// The requests to a store since its start.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Requests by the name of the operation: `putobject`, `getobject`, ...
    pub requests: BTreeMap<String, f64>,
    /// Bytes received by the store.
    pub received: f64,
    /// Bytes sent by the store.
    pub sent: f64,
}

impl Counts {
    /// The number of requests whose operation contains this.
    pub fn of(&self, operation: &str) -> f64 {
        self.requests.iter().filter(|(name, _)| name.contains(operation)).map(|(_, count)| count).sum()
    }
}

/// A running MinIO.
pub struct Store {
    access: Access,
    /// The server's own port.
    port: u16,
    relay: Relay,
    data: PathBuf,
    server: Child,
}

impl Store {
    /// Starts a store with its data below `folder`.
    ///
    /// # Errors
    /// The program does not exist, or does not answer within 30 s.
    pub fn start(program: &Path, folder: &Path) -> Result<Store> {
        let (port, data) = (free_port()?, folder.join("store"));
        for bucket in BUCKETS {
            fs::create_dir_all(data.join(bucket))?;
        }
        let key = format!("bench{:08x}", base::random::u64() as u32);
        let relay = Relay::start(port)?;
        let access =
            Access { port: relay.port(), key, secret: format!("{:032x}", u128::from(base::random::u64())) };
        let log = File::create(folder.join("store.log"))?;
        let mut command = Command::new(program);
        command.arg("server").arg(&data).args(["--address", &format!("127.0.0.1:{port}"), "--quiet"]);
        command.env("MINIO_ROOT_USER", &access.key).env("MINIO_ROOT_PASSWORD", &access.secret);
        command.env("MINIO_BROWSER", "off");
        command.env("HOME", folder).process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let server = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let mut store = Store { access, port, relay, data, server };
        let begun = monotonic();
        while !store.get("/minio/health/ready").is_ok_and(|answer| answer.starts_with("HTTP/1.0 200")) {
            if store.server.try_wait()?.is_some() || begun.elapsed() > Duration::from_secs(30) {
                let said = fs::read_to_string(folder.join("store.log")).unwrap_or_default();
                return Err(format!("the S3 store did not start: {said}").into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(store)
    }

    /// Its address and keys.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Its own address, without the relay.
    pub fn direct(&self) -> Access {
        Access { port: self.port, ..self.access.clone() }
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.server.id()
    }

    /// The folder of its data.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.relay.counts()
    }

    /// During `work`, each request waits about `median` for the first byte of its answer.
    pub fn with_latency<T>(&self, median: Duration, work: impl FnOnce() -> T) -> T {
        self.relay.delay(median);
        let done = work();
        self.relay.delay(Duration::ZERO);
        done
    }

    /// During `work`, the store is behind a simulated network: its answers share a link of `rate` bytes per
    /// second, and each request waits about `median` for the first byte.
    pub fn over_link<T>(&self, rate: u64, median: Duration, work: impl FnOnce() -> T) -> T {
        self.relay.limit(rate);
        let done = self.with_latency(median, work);
        self.relay.limit(0);
        done
    }

    fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        // HTTP/1.0 has no chunks, whose lengths would appear in the middle of lines.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\n\r\n", self.port)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        process::end(&mut self.server);
    }
}
