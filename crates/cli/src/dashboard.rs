//! The mounts of this machine, and a fleet that is asked from outside, for the dashboard.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::control::{ControlAddress, Request};
use api::error::{Failure, Result};
use api::status::fleet::PeerRow;
use api::watch::Wish;
use node::control;
use node::fleet::look;
use node::fleet::options::TlsOptions;
use parking_lot::Mutex;
use serde_json::Value;
use ui::{Daemons, Shown};

/// How long a list of members answers every page.
const FRESH: Duration = Duration::from_secs(2);

/// Mounts of this machine.
pub struct Machine {
    /// The mountpoints that are shown. `None`: all that are there.
    only: Option<Vec<PathBuf>>,
    fleet: Option<Outside>,
}

/// A fleet that this machine need not be a part of.
pub struct Outside {
    join: String,
    secret_file: Option<PathBuf>,
    tls: TlsOptions,
    /// The last list, and when it was asked for. Held while a node is asked, so that many pages ask once.
    last: Mutex<Option<(Instant, Result<Vec<PeerRow>>)>>,
}

impl Outside {
    /// The fleet of any of these nodes.
    pub fn new(join: &str, secret_file: Option<PathBuf>, tls: TlsOptions) -> Outside {
        Outside { join: join.to_owned(), secret_file, tls, last: Mutex::default() }
    }

    fn members(&self) -> Result<Vec<PeerRow>> {
        let mut last = self.last.lock();
        if let Some((_, rows)) = last.as_ref().filter(|(at, _)| base::time::monotonic() - *at < FRESH) {
            return rows.clone();
        }
        let rows = look::look(&self.join, self.secret_file.as_deref(), &self.tls);
        last.insert((base::time::monotonic(), rows)).1.clone()
    }
}

impl Machine {
    /// All mounts, also later ones.
    pub fn all() -> Machine {
        Machine { only: None, fleet: None }
    }

    /// The mounts at these mountpoints.
    pub fn with(mountpoints: Vec<PathBuf>) -> Machine {
        Machine { only: Some(mountpoints), fleet: None }
    }

    /// Also the members of a fleet.
    pub fn and(self, fleet: Option<Outside>) -> Machine {
        Machine { fleet, ..self }
    }
}

impl Daemons for Machine {
    fn mounts(&self) -> Vec<Shown> {
        let shown = |mount: fuse::mount::Mounted| Shown { source: mount.source, mountpoint: mount.path };
        let is_shown = |mount: &Shown| self.only.as_ref().is_none_or(|only| only.contains(&mount.mountpoint));
        node::trust::mounts().into_iter().map(shown).filter(is_shown).collect()
    }

    fn ask(&self, mount: &Shown, request: &Request) -> Result<Value> {
        control::ask(&address(mount), request, &mut |_| ())
    }

    fn watch(&self, mount: &Shown, wish: &Wish, each: &mut dyn FnMut(Value) -> bool) -> Result<()> {
        let asked = control::begin(&address(mount), &Request::Watch { wish: wish.clone() })?;
        let stopper = asked.stopper()?;
        let mut is_wanted = true;
        asked
            .hear::<Value>(&mut |_| (), &mut |note| {
                if is_wanted && !each(note) {
                    is_wanted = false;
                    stopper.stop();
                }
            })
            .map(drop)
    }

    fn fleet(&self) -> Option<String> {
        self.fleet.as_ref().map(|fleet| fleet.join.clone())
    }

    fn members(&self) -> Result<Vec<PeerRow>> {
        let none = || {
            Failure::new("no-fleet", "this dashboard asks no fleet")
                .next("covey ui --join HOST:PORT --secret-file FILE")
        };
        self.fleet.as_ref().ok_or_else(none)?.members()
    }
}

fn address(mount: &Shown) -> ControlAddress {
    ControlAddress::of_source(Path::new(&mount.source))
}
