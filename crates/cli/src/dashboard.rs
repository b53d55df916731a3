//! The mounts of this machine, for the dashboard.

use std::path::{Path, PathBuf};

use api::control::{ControlAddress, Request};
use api::error::Result;
use api::watch::Wish;
use node::control;
use serde_json::Value;
use ui::{Daemons, Shown};

/// Mounts of this machine.
pub enum Mounts {
    /// All that are there.
    All,
    /// These.
    Named(Vec<PathBuf>),
}

impl Daemons for Mounts {
    fn mounts(&self) -> Vec<Shown> {
        let shown = |mount: fuse::mount::Mounted| Shown { source: mount.source, mountpoint: mount.path };
        let is_shown = |mount: &Shown| match self {
            Mounts::All => true,
            Mounts::Named(paths) => paths.contains(&mount.mountpoint),
        };
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
}

fn address(mount: &Shown) -> ControlAddress {
    ControlAddress::of_source(Path::new(&mount.source))
}
