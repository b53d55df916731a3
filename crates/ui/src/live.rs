//! Live figures. One thread watches a mount while browsers look at it, however many they are, and sends each
//! of them the same messages.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::control::Request;
use api::watch::Wish;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast::{Receiver, Sender, channel};

use crate::{Daemons, Shown};

/// How often a daemon reports.
const INTERVAL_MS: u64 = 1_000;
/// How long after a failure the daemon is asked again.
const AGAIN: Duration = Duration::from_secs(2);
/// Messages that a slow browser may be behind. It then misses some.
const BEHIND: usize = 8;

/// The mounts that browsers look at.
#[derive(Default)]
pub struct Live {
    watched: Mutex<HashMap<PathBuf, Sender<Arc<str>>>>,
}

impl Live {
    /// The messages about a mount from now on. Must be called on the runtime.
    pub fn follow(self: &Arc<Live>, daemons: &Arc<dyn Daemons>, mount: Shown) -> Receiver<Arc<str>> {
        let mut watched = self.watched.lock();
        if let Some(sender) = watched.get(&mount.mountpoint) {
            return sender.subscribe();
        }
        let (sender, receiver) = channel(BEHIND);
        watched.insert(mount.mountpoint.clone(), sender.clone());
        let (live, daemons) = (self.clone(), daemons.clone());
        tokio::task::spawn_blocking(move || live.watch(&*daemons, &mount, &sender));
        receiver
    }

    /// Sends messages until no browser looks at the mount.
    fn watch(&self, daemons: &dyn Daemons, mount: &Shown, sender: &Sender<Arc<str>>) {
        let mut is_wanted = true;
        while is_wanted {
            let wish = Wish::Stats { interval_ms: INTERVAL_MS };
            let ended = daemons.watch(mount, &wish, &mut |stats| {
                is_wanted = self.send(mount, sender, &figures(daemons, mount, stats));
                is_wanted
            });
            if let (true, Err(failure)) = (is_wanted, &ended) {
                is_wanted = self.send(mount, sender, &json!({ "silent": failure }));
            }
            if is_wanted {
                std::thread::sleep(AGAIN);
            }
        }
    }

    /// False if no browser is left. The mount is then no longer watched.
    fn send(&self, mount: &Shown, sender: &Sender<Arc<str>>, message: &Value) -> bool {
        if sender.send(message.to_string().into()).is_ok() {
            return true;
        }
        let mut watched = self.watched.lock();
        // A browser may have come meanwhile.
        if sender.receiver_count() > 0 {
            return true;
        }
        watched.remove(&mount.mountpoint);
        false
    }
}

/// One message: the last second, all figures, and the parts of files that are hot.
fn figures(daemons: &dyn Daemons, mount: &Shown, stats: Value) -> Value {
    let status = daemons.ask(mount, &Request::Status).unwrap_or_default();
    let heat = daemons.ask(mount, &Request::Heat { path: None, top: 1 }).ok();
    let heat = heat.map(|heat| json!({ "view": heat["view"], "hot": heat["hot"], "events": heat["events"] }));
    json!({ "stats": stats, "status": status, "heat": heat })
}
