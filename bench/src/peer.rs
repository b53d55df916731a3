//! Other FUSE filesystems for comparison. They are separate programs, used from given paths or from where
//! `scripts/bootstrap bench-peers` has put them. A missing one is reported as skipped.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::time::monotonic;

use crate::Result;
use crate::store::{self, Access};
use crate::work::run;

/// The peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// JuiceFS with names in SQLite and objects in a folder.
    JuiceSqlite,
    /// JuiceFS with names in Redis and objects in a folder.
    JuiceRedis,
    /// go-fuse's loopback: forwards every request to a folder.
    Loopback,
    /// JuiceFS with names in SQLite and objects in an S3 store.
    JuiceS3,
    /// rclone mount over an S3 store, with its whole cache.
    Rclone,
    /// s3fs over an S3 store, with its cache.
    S3fs,
}

/// The paths of the peers' programs.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// `juicefs`.
    pub juicefs: Option<PathBuf>,
    /// `redis-server`.
    pub redis: Option<PathBuf>,
    /// go-fuse's example `loopback`.
    pub loopback: Option<PathBuf>,
    /// `rclone`.
    pub rclone: Option<PathBuf>,
    /// `s3fs`.
    pub s3fs: Option<PathBuf>,
    /// The S3 store for the peers that need one.
    pub store: Option<Access>,
    /// Redis's port, once it is known.
    port: u16,
    /// The port for asking rclone whether it has uploaded everything.
    rclone_port: u16,
}

impl Tools {
    /// No programs.
    pub fn none() -> Tools {
        Tools::default()
    }

    fn access(&self) -> Result<&Access> {
        self.store.as_ref().ok_or_else(|| "there is no S3 store to measure over".into())
    }

    /// Those that are installed.
    ///
    /// # Errors
    /// A given path does not lead to a program.
    pub fn find(juicefs: Option<&Path>, loopback: Option<&Path>) -> Result<Tools> {
        let given = |path: Option<&Path>, what: &str| -> Result<Option<PathBuf>> {
            let Some(path) = path else { return Ok(None) };
            let found = path.canonicalize().ok().filter(|path| path.is_file());
            found
                .map(Some)
                .ok_or_else(|| format!("{}: there is no program {what} here", path.display()).into())
        };
        Ok(Tools {
            juicefs: given(juicefs, "juicefs")?.or_else(|| on_path("juicefs")),
            loopback: given(loopback, "loopback")?,
            redis: on_path("redis-server"),
            rclone: on_path("rclone"),
            s3fs: on_path("s3fs"),
            store: None,
            port: free_port()?,
            rclone_port: free_port()?,
        })
    }
}

/// A program of this name on PATH.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// A port that is free now.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Peer {
    /// The peers that store their bytes in a folder.
    pub const ALL: [Peer; 3] = [Peer::JuiceSqlite, Peer::JuiceRedis, Peer::Loopback];
    /// The peers that store them in an S3 store.
    pub const OVER_S3: [Peer; 3] = [Peer::JuiceS3, Peer::Rclone, Peer::S3fs];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Peer::JuiceSqlite => "juicefs sqlite",
            Peer::JuiceRedis => "juicefs redis",
            Peer::Loopback => "go-fuse loopback",
            Peer::JuiceS3 => "juicefs",
            Peer::Rclone => "rclone",
            Peer::S3fs => "s3fs",
        }
    }

    /// Why it cannot be measured here, and what to do about it; `None` if it can.
    pub fn missing(self, tools: &Tools) -> Option<&'static str> {
        const JUICE: &str = "no juicefs: give its path with JUICEFS=";
        match self {
            Peer::JuiceSqlite | Peer::JuiceS3 if tools.juicefs.is_none() => Some(JUICE),
            Peer::Rclone if tools.rclone.is_none() => {
                Some("no rclone: scripts/bootstrap bench-origin installs it")
            }
            Peer::S3fs if tools.s3fs.is_none() => Some("no s3fs: scripts/bootstrap bench-origin installs it"),
            Peer::JuiceRedis if tools.juicefs.is_none() => Some(JUICE),
            Peer::JuiceRedis if tools.redis.is_none() => {
                Some("no redis-server: scripts/bootstrap bench-peers installs it")
            }
            Peer::Loopback if tools.loopback.is_none() => Some(
                "no go-fuse loopback: scripts/bootstrap bench-peers builds it where there is a Go compiler",
            ),
            _ => None,
        }
    }

    fn meta(self, tools: &Tools, folder: &Path) -> String {
        match self {
            Peer::JuiceRedis => format!("redis://127.0.0.1:{}/1", tools.port),
            _ => format!("sqlite3://{}", folder.join("meta.db").display()),
        }
    }

    /// Creates its volume, and starts the helper programs that it needs.
    ///
    /// # Errors
    /// A program failed.
    pub fn prepare(self, tools: &Tools, folder: &Path) -> Result<Vec<Child>> {
        let mut helpers = Vec::new();
        match self {
            Peer::Loopback => {
                return fs::create_dir_all(folder.join("below")).map(|()| helpers).map_err(Into::into);
            }
            Peer::Rclone => return Ok(helpers),
            Peer::S3fs => return tools.access()?.write_password(&folder.join("password")).map(|()| helpers),
            Peer::JuiceS3 => return self.format_over_s3(tools, folder).map(|()| helpers),
            Peer::JuiceSqlite | Peer::JuiceRedis => {}
        }
        if self == Peer::JuiceRedis {
            helpers.push(start_redis(tools, folder)?);
        }
        let made = run(Command::new(program(&tools.juicefs))
            .args(["format", "--no-agent", "--storage", "file", "--trash-days", "0", "--bucket"])
            .arg(format!("{}/", folder.join("objects").display()))
            .arg(self.meta(tools, folder))
            .arg("bench"));
        if made.is_err() {
            helpers.iter_mut().for_each(crate::process::end);
        }
        made.map(|()| helpers)
    }

    fn format_over_s3(self, tools: &Tools, folder: &Path) -> Result<()> {
        let access = tools.access()?;
        run(Command::new(program(&tools.juicefs))
            .args(["format", "--no-agent", "--storage", "minio", "--trash-days", "0", "--bucket"])
            .arg(format!("{}/{}", access.endpoint(), store::BUCKETS[1]))
            .env("ACCESS_KEY", &access.key)
            .env("SECRET_KEY", &access.secret)
            .arg(self.meta(tools, folder))
            .arg("bench"))
    }

    /// The folder of its cache, which it can fetch again.
    pub fn cache(self, folder: &Path) -> PathBuf {
        folder.join("cache")
    }

    /// Waits until everything written is in the store, if the program does not do that by itself.
    ///
    /// # Errors
    /// The uploads do not end.
    pub fn settle(self, tools: &Tools) -> Result<()> {
        if self != Peer::Rclone {
            return Ok(());
        }
        let begun = monotonic();
        loop {
            let asked = Command::new(program(&tools.rclone))
                .args(["rc", "--rc-addr", &format!("127.0.0.1:{}", tools.rclone_port), "vfs/stats"])
                .output()?;
            let stats: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap_or_default();
            let waiting = ["uploadsInProgress", "uploadsQueued"]
                .map(|name| stats.pointer(&format!("/diskCache/{name}")).and_then(serde_json::Value::as_u64));
            if waiting == [Some(0), Some(0)] {
                return Ok(());
            }
            if begun.elapsed() > Duration::from_secs(600) {
                return Err("rclone did not upload what was written within ten minutes".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn over_s3(self, tools: &Tools, folder: &Path, root: &Path) -> Result<Command> {
        let access = tools.access()?;
        if self == Peer::S3fs {
            let mut command = Command::new(program(&tools.s3fs));
            command.arg(store::BUCKETS[3]).arg(root).args(["-f", "-o", "use_path_request_style", "-o"]);
            command.arg(format!("url={}", access.endpoint())).arg("-o");
            command.arg(format!("passwd_file={}", folder.join("password").display())).arg("-o");
            command.arg(format!("use_cache={}", self.cache(folder).display())).args(["-o", "allow_other"]);
            return Ok(command);
        }
        let mut command = Command::new(program(&tools.rclone));
        command.arg("mount").arg(format!("bench:{}", store::BUCKETS[2])).arg(root);
        command.args(["--vfs-cache-mode", "full", "--allow-other", "--rc", "--rc-no-auth", "--rc-addr"]);
        command.arg(format!("127.0.0.1:{}", tools.rclone_port));
        command.arg("--cache-dir").arg(self.cache(folder)).arg("--config").arg(folder.join("none"));
        command.env("RCLONE_CONFIG_BENCH_TYPE", "s3").env("RCLONE_CONFIG_BENCH_PROVIDER", "Minio");
        command.env("RCLONE_CONFIG_BENCH_ENDPOINT", access.endpoint());
        command.env("RCLONE_CONFIG_BENCH_ACCESS_KEY_ID", &access.key);
        command.env("RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY", &access.secret);
        // Version 1.60 refuses to start with it.
        command.env_remove("AWS_CA_BUNDLE");
        Ok(command)
    }

    /// The program that serves it.
    ///
    /// # Errors
    /// It needs a store, and none is given.
    pub fn command(self, tools: &Tools, folder: &Path, root: &Path) -> Result<Command> {
        if matches!(self, Peer::Rclone | Peer::S3fs) {
            return self.over_s3(tools, folder, root);
        }
        if self == Peer::Loopback {
            let mut command = Command::new(program(&tools.loopback));
            command.arg("-allow-other").arg(root).arg(folder.join("below"));
            return Ok(command);
        }
        let mut command = Command::new(program(&tools.juicefs));
        command.args(["mount", "--no-usage-report", "--no-agent", "--no-syslog", "--backup-meta", "0"]);
        command.arg("--cache-dir").arg(self.cache(folder));
        command.args(["--metrics", "127.0.0.1:0"]);
        command.arg(self.meta(tools, folder)).arg(root);
        Ok(command)
    }
}

fn program(path: &Option<PathBuf>) -> PathBuf {
    path.clone().unwrap_or_default()
}

fn start_redis(tools: &Tools, folder: &Path) -> Result<Child> {
    let port = tools.port;
    let log = fs::File::create(folder.join("redis.log"))?;
    let mut command = Command::new(program(&tools.redis));
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--appendonly", "yes", "--save", ""]);
    command.process_group(0);
    command.arg("--dir").arg(folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut redis = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let begun = monotonic();
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if redis.try_wait()?.is_some() || begun.elapsed() > Duration::from_secs(20) {
            crate::process::end(&mut redis);
            let said = fs::read_to_string(folder.join("redis.log")).unwrap_or_default();
            return Err(format!("redis-server did not start: {said}").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(redis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_peers_say_what_to_do() {
        let none = Tools::none();
        assert!(Peer::ALL.iter().all(|peer| peer.missing(&none).is_some()));
        let some = Tools { juicefs: Some("/bin/true".into()), ..Tools::none() };
        assert!(Peer::JuiceSqlite.missing(&some).is_none());
        assert!(Peer::JuiceRedis.missing(&some).is_some_and(|why| why.contains("redis-server")));
        assert!(Tools::find(Some(Path::new("/no/such/juicefs")), None).is_err());
    }
}
