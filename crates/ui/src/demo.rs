//! The demos of the project, run from the page: one at a time, as `make demo-...` in a checkout.
//!
//! ```text
//!   POST /demos/cache ──► make -s -C FOLDER demo-cache          a process group of its own
//!                            │  COVEY_DEMO_EVENTS=/tmp/covey-ui-.../events
//!                            └──► JSON lines ──► kept, within bounds ──► every page, over a WebSocket
//! ```
//!
//! To stop a run, `make` is asked to end (SIGTERM) and passes that on. Processes of the group that are left
//! when it has ended are asked, too. What is left after [`GRACE`] is killed. The dashboard stops a run when
//! it ends.

mod kept;
mod process;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;

use kept::{Kept, LINE_MAX};
use process::{Started, Tail};

pub use kept::Message;

/// How long a demo may take to remove what it made, after it was asked to end.
const GRACE: Duration = Duration::from_secs(60);
/// How long after a demo's end what it had sent before is still read.
const REST: Duration = Duration::from_secs(1);
/// Connections of a demo at a time.
const CONNECTIONS: usize = 8;
/// How often pages get the latest line of the output.
const OUTPUT: Duration = Duration::from_millis(500);
/// Messages that a slow page may be behind. Then it gets everything anew.
const BEHIND: usize = 1_024;

/// A demo of the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Demo {
    /// Reads of the same data again and again.
    Cache,
    /// More nodes.
    Scale,
    /// A sort over several nodes.
    Sort,
}

impl Demo {
    /// Returns the demo's name, in paths and in `make demo-NAME`.
    pub fn name(self) -> &'static str {
        match self {
            Demo::Cache => "cache",
            Demo::Scale => "scale",
            Demo::Sort => "sort",
        }
    }
}

/// The demos of one checkout.
pub struct Demos {
    folder: PathBuf,
    state: Mutex<State>,
    news: broadcast::Sender<Message>,
    /// Whether none runs.
    idle: watch::Sender<bool>,
    /// Whether the dashboard ends.
    stopped: watch::Receiver<bool>,
}

/// Guarded by a lock that is held for no wait. Messages are sent under it, so a page misses none.
#[derive(Default)]
struct State {
    stop: Option<Arc<Notify>>,
    kept: Option<Kept>,
}

impl Demos {
    /// Of the checkout in a folder.
    pub fn new(folder: PathBuf, stopped: watch::Receiver<bool>) -> Arc<Demos> {
        let (news, idle) = (broadcast::Sender::new(BEHIND), watch::Sender::new(true));
        Arc::new(Demos { folder, state: Mutex::default(), news, idle, stopped })
    }

    /// What runs, for programs.
    pub fn state(&self) -> Value {
        let state = self.state.lock();
        let running = state.stop.is_some();
        let last = state.kept.as_ref();
        json!({ "folder": self.folder.display().to_string(), "running": running, "demo": last.map(Kept::demo),
            "small": last.is_some_and(Kept::small), "ok": last.filter(|_| !running).and_then(Kept::end) })
    }

    /// Everything so far, and what comes from now on.
    pub fn follow(&self) -> (Vec<Message>, broadcast::Receiver<Message>) {
        let state = self.state.lock();
        let idle = || vec![json!({ "kind": "idle" }).to_string().into()];
        (state.kept.as_ref().map_or_else(idle, Kept::messages), self.news.subscribe())
    }

    /// Starts a demo. Must be called on the runtime.
    ///
    /// # Errors
    /// One runs (`demo-runs`), or it cannot be started.
    pub fn start(self: &Arc<Demos>, demo: Demo, small: bool) -> Result<Value> {
        let mut state = self.state.lock();
        if state.stop.is_some() || *self.stopped.borrow() {
            return Err(Failure::new("demo-runs", "a demo runs already").next("wait for its end, or stop it"));
        }
        let started = process::start(&self.folder, demo, small).map_err(|error| {
            Failure::io(
                format!("cannot start make -C {} demo-{}", self.folder.display(), demo.name()),
                &error,
            )
        })?;
        let (stop, kept) = (Arc::new(Notify::new()), Kept::new(demo, small));
        kept.messages().into_iter().for_each(|message| drop(self.news.send(message)));
        *state = State { stop: Some(stop.clone()), kept: Some(kept) };
        self.idle.send_replace(false);
        tokio::spawn(self.clone().run(started, stop));
        Ok(json!({ "demo": demo, "small": small }))
    }

    /// Stops a demo, and waits until it has removed what it made.
    ///
    /// # Errors
    /// It does not run.
    pub async fn stop(&self, demo: Demo) -> Result<Value> {
        {
            let state = self.state.lock();
            let runs = state.kept.as_ref().is_some_and(|kept| kept.demo() == demo);
            let stop = state.stop.as_ref().filter(|_| runs);
            let none = || Failure::new("not-found", format!("the demo {} does not run", demo.name()));
            stop.ok_or_else(none)?.notify_one();
        }
        self.ended().await;
        Ok(json!({ "demo": demo }))
    }

    /// Waits until none runs.
    pub async fn ended(&self) {
        let mut idle = self.idle.subscribe();
        let _ = idle.wait_for(|idle| *idle).await;
    }

    async fn run(self: Arc<Demos>, mut started: Started, stop: Arc<Notify>) {
        let (mut readers, mut tail) = (JoinSet::new(), Tail::default());
        let asked = self.accompany(&mut started, &stop, &mut readers, &mut tail).await;
        // Its socket may hold connections that were made just before the end.
        while let Ok(Ok((stream, _))) = tokio::time::timeout(REST / 20, started.listener.accept()).await {
            readers.spawn(self.clone().read(stream));
        }
        let status = started.group.finish(GRACE).await;
        let _ = tokio::time::timeout(REST, async { while readers.join_next().await.is_some() {} }).await;
        readers.abort_all();
        let mut rest = vec![0; LINE_MAX];
        while let Ok(got @ 1..) = started.output.try_read(&mut rest) {
            tail.push(&rest[..got]);
        }
        let good = status.as_ref().is_ok_and(std::process::ExitStatus::success);
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        drop(started);
        let mut state = self.state.lock();
        let ended = state.kept.as_mut().map(|kept| kept.ended(&how, asked, good, &tail.lines()));
        ended.into_iter().for_each(|message| drop(self.news.send(message)));
        state.stop = None;
        self.idle.send_replace(true);
    }

    /// Passes on what the demo says until its first process has ended. Returns whether it was asked to end.
    async fn accompany(
        self: &Arc<Demos>,
        started: &mut Started,
        stop: &Notify,
        readers: &mut JoinSet<()>,
        tail: &mut Tail,
    ) -> bool {
        let Started { group, listener, output, .. } = started;
        let (mut stopped, mut asked) = (self.stopped.clone(), false);
        let (mut piece, mut open, mut is_new) = (vec![0; LINE_MAX], true, false);
        let mut ticks = tokio::time::interval(OUTPUT);
        let mut left = (GRACE.as_millis() / OUTPUT.as_millis()) as u32;
        loop {
            let ends = async {
                tokio::select! {
                    () = stop.notified() => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            };
            tokio::select! {
                () = group.exited() => return asked,
                () = ends, if !asked => {
                    asked = true;
                    group.ask_to_end();
                }
                Ok((stream, _)) = listener.accept(), if readers.len() < CONNECTIONS => {
                    readers.spawn(self.clone().read(stream));
                }
                Some(_) = readers.join_next(), if !readers.is_empty() => {}
                got = output.read(&mut piece), if open => {
                    let got = got.unwrap_or(0);
                    tail.push(&piece[..got]);
                    (open, is_new) = (got > 0, is_new || got > 0);
                }
                _ = ticks.tick() => {
                    if let (true, Some(line)) = (is_new, tail.lines().last()) {
                        self.publish(|kept| Some(kept.output(line)));
                        is_new = false;
                    }
                    left -= u32::from(asked && left > 0);
                    if left == 0 {
                        group.kill();
                    }
                }
            }
        }
    }

    /// Reads lines of a connection to its end.
    async fn read(self: Arc<Demos>, stream: UnixStream) {
        let mut reader = BufReader::new(stream);
        let (mut line, mut skips) = (Vec::new(), false);
        loop {
            line.clear();
            let most = LINE_MAX as u64 + 1;
            let got: io::Result<usize> = (&mut reader).take(most).read_until(b'\n', &mut line).await;
            if !got.is_ok_and(|got| got > 0) {
                return;
            }
            let is_whole = line.pop_if(|last| *last == b'\n').is_some();
            if skips || line.len() > LINE_MAX {
                // The beginning of a line that is too long was counted.
                if !skips {
                    self.publish(|kept| {
                        kept.ignore();
                        None
                    });
                }
                skips = !is_whole;
                continue;
            }
            self.publish(|kept| kept.take(&line));
        }
    }

    /// Keeps something, and sends what comes of it to the pages.
    fn publish(&self, keep: impl FnOnce(&mut Kept) -> Option<Message>) {
        let mut state = self.state.lock();
        if let Some(message) = state.kept.as_mut().and_then(keep) {
            let _ = self.news.send(message);
        }
    }
}
