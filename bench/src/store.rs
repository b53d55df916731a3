//! An S3 store to measure over: a MinIO on loopback, with keys made for this run, and what it counted of requests and bytes.
//!
//! Its single-disk form takes each folder of its data for a bucket, so buckets are made with mkdir(2); each program that is measured
//! has one of its own. Its program comes by a path: `make minio` builds it outside the repository.

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

/// A bucket for each program: Covey, JuiceFS, rclone, s3fs; and one for what asks the store itself.
pub const BUCKETS: [&str; 5] =
    ["covey-volume", "juice-objects", "rclone-files", "s3fs-files", "bare-objects"];

/// The store answers with figures that it gathered up to so long ago.
const STALE: Duration = Duration::from_secs(11);

/// How a store is reached.
#[derive(Clone)]
pub struct Access {
    /// On loopback.
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

    /// Gives a program the keys, in its environment.
    pub fn hand_to(&self, command: &mut Command) {
        command.env("AWS_ACCESS_KEY_ID", &self.key).env("AWS_SECRET_ACCESS_KEY", &self.secret);
        command.env_remove("AWS_SESSION_TOKEN").env_remove("AWS_PROFILE");
    }

    /// Writes them as s3fs reads them.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_password(&self, file: &Path) -> Result<()> {
        let mut to = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
        Ok(writeln!(to, "{}:{}", self.key, self.secret)?)
    }
}

/// What a store was asked, since it began.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Requests by the name of the operation: `putobject`, `getobject`, ...
    pub requests: BTreeMap<String, f64>,
    /// Bytes that came in.
    pub received: f64,
    /// Bytes that went out.
    pub sent: f64,
}

impl Counts {
    /// All requests whose operation contains this.
    pub fn of(&self, operation: &str) -> f64 {
        self.requests.iter().filter(|(name, _)| name.contains(operation)).map(|(_, count)| count).sum()
    }
}

/// A running MinIO.
pub struct Store {
    access: Access,
    data: PathBuf,
    server: Child,
}

impl Store {
    /// Starts one that keeps its data below `folder`.
    ///
    /// # Errors
    /// The program is not there, or does not answer within 30 s.
    pub fn start(program: &Path, folder: &Path) -> Result<Store> {
        let (port, data) = (free_port()?, folder.join("store"));
        for bucket in BUCKETS {
            fs::create_dir_all(data.join(bucket))?;
        }
        let key = format!("bench{:08x}", base::random::u64() as u32);
        let access = Access { port, key, secret: format!("{:032x}", u128::from(base::random::u64())) };
        let log = File::create(folder.join("store.log"))?;
        let mut command = Command::new(program);
        command.arg("server").arg(&data).args(["--address", &format!("127.0.0.1:{port}"), "--quiet"]);
        command.env("MINIO_ROOT_USER", &access.key).env("MINIO_ROOT_PASSWORD", &access.secret);
        command.env("MINIO_PROMETHEUS_AUTH_TYPE", "public").env("MINIO_BROWSER", "off");
        command.env("HOME", folder).process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let server = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let mut store = Store { access, data, server };
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

    /// How it is reached.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Where its data is.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// What it counted so far. The request for this is among them on neither side. Waits until figures of this moment are to be had.
    ///
    /// # Errors
    /// It does not answer.
    pub fn counts(&self) -> Result<Counts> {
        std::thread::sleep(STALE);
        Ok(parse(&self.get("/minio/v2/metrics/node")?))
    }

    fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.access.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        // This version of the protocol knows no chunks, whose lengths would stand in the middle of lines.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\n\r\n", self.access.port)?;
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

/// Reads the few lines of its metrics that matter.
fn parse(text: &str) -> Counts {
    let mut counts = Counts::default();
    for line in text.lines() {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let Ok(value) = value.trim().parse::<f64>() else { continue };
        if name.starts_with("minio_s3_requests_total{") {
            let api = name.split("api=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("other");
            *counts.requests.entry(api.to_lowercase()).or_default() += value;
        } else if name.starts_with("minio_s3_traffic_received_bytes") {
            counts.received += value;
        } else if name.starts_with("minio_s3_traffic_sent_bytes") {
            counts.sent += value;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_bytes_are_found_among_the_metrics() {
        let counts = parse(
            "# HELP minio_s3_requests_total Total\nminio_s3_requests_total{api=\"putobject\",server=\"a\"} 12\n\
             minio_s3_requests_total{api=\"getobject\",server=\"a\"} 3\nminio_s3_requests_errors_total{api=\"getobject\"} 9\n\
             minio_s3_traffic_received_bytes{server=\"a\"} 1.5e+06\nminio_s3_traffic_sent_bytes{server=\"a\"} 7\n",
        );
        assert!((counts.of("put") - 12.0).abs() < 0.1 && (counts.of("getobject") - 3.0).abs() < 0.1);
        assert!((counts.received - 1.5e6).abs() < 0.1 && (counts.sent - 7.0).abs() < 0.1);
    }
}
