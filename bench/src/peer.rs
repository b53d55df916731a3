//! Other FUSE filesystems to measure beside. They are programs of their own: found where their paths are given, or where
//! `scripts/bootstrap bench-peers` has put them; one that is not there is said to be skipped.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::time::monotonic;

use crate::Result;
use crate::work::run;

/// Which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// JuiceFS with names in SQLite and objects in a folder.
    JuiceSqlite,
    /// JuiceFS with names in Redis and objects in a folder.
    JuiceRedis,
    /// go-fuse's loopback: passes everything on to a folder.
    Loopback,
}

/// Where the peers' programs are.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// `juicefs`.
    pub juicefs: Option<PathBuf>,
    /// `redis-server`.
    pub redis: Option<PathBuf>,
    /// go-fuse's example `loopback`.
    pub loopback: Option<PathBuf>,
    /// Redis's port, once it is known.
    port: u16,
}

impl Tools {
    /// None of them.
    pub fn none() -> Tools {
        Tools::default()
    }

    /// Those that are there.
    ///
    /// # Errors
    /// A path that was given is none of a program.
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
            port: free_port()?,
        })
    }
}

/// A program of this name on PATH.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// A port that nobody listens on now.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Peer {
    /// All.
    pub const ALL: [Peer; 3] = [Peer::JuiceSqlite, Peer::JuiceRedis, Peer::Loopback];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Peer::JuiceSqlite => "juicefs sqlite",
            Peer::JuiceRedis => "juicefs redis",
            Peer::Loopback => "go-fuse loopback",
        }
    }

    /// Why it cannot be measured here, with what to do; `None` when it can.
    pub fn missing(self, tools: &Tools) -> Option<&'static str> {
        const JUICE: &str = "no juicefs: give its path with JUICEFS=";
        match self {
            Peer::JuiceSqlite if tools.juicefs.is_none() => Some(JUICE),
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

    /// Makes its volume, and starts what it needs beside itself.
    ///
    /// # Errors
    /// A program failed.
    pub fn prepare(self, tools: &Tools, folder: &Path) -> Result<Vec<Child>> {
        let mut helpers = Vec::new();
        if self == Peer::Loopback {
            fs::create_dir_all(folder.join("below"))?;
            return Ok(helpers);
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

    /// The program that serves it.
    pub fn command(self, tools: &Tools, folder: &Path, root: &Path) -> Command {
        if self == Peer::Loopback {
            let mut command = Command::new(program(&tools.loopback));
            command.arg("-allow-other").arg(root).arg(folder.join("below"));
            return command;
        }
        let mut command = Command::new(program(&tools.juicefs));
        command.args(["mount", "--no-usage-report", "--no-agent", "--no-syslog", "--backup-meta", "0"]);
        command.arg("--cache-dir").arg(folder.join("cache"));
        command.args(["--metrics", "127.0.0.1:0"]);
        command.arg(self.meta(tools, folder)).arg(root);
        command
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
