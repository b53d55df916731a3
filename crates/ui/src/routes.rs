//! The paths, and what answers them.

mod demos;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::control::Request;
use api::error::Failure;
use api::raw_path::RawPath;
use api::watch::Wish;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::demo::Demos;
use crate::guard::Guard;
use crate::lab::Lab;
use crate::live::Live;
use crate::{Daemons, Shown, assets};

/// Streams at a time.
pub const STREAMS: usize = 64;
/// Questions to daemons at a time: fewer than a daemon answers to one process.
pub const QUESTIONS: usize = 12;
/// Questions at a time of clients without the token.
const QUESTIONS_OPEN: usize = 8;
/// How long a question waits for others.
const TURN: Duration = Duration::from_secs(10);
/// A stream without messages gets a sign of life this often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// Chunks in an answer about heat, unless more are asked for, and at most.
const CHUNKS: u32 = 500;
const CHUNKS_MAX: u32 = 65_536;

/// What handlers share.
pub struct App {
    daemons: Arc<dyn Daemons>,
    guard: Arc<Guard>,
    questions: Questions,
    live: Arc<Live>,
    extras: Extras,
    streams: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

/// Questions to daemons that are under way. A daemon answers some requests of a process at a time, and its
/// other places are for commands: so others wait here. Those who may read without the token leave some to
/// those who have it.
struct Questions {
    all: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Default for Questions {
    fn default() -> Questions {
        let new = |count| Arc::new(Semaphore::new(count));
        Questions { all: new(QUESTIONS), open: new(QUESTIONS_OPEN) }
    }
}

impl Questions {
    /// Waits until a question may be asked. None: too many wait.
    async fn turn(&self, known: bool) -> Option<(Option<OwnedSemaphorePermit>, OwnedSemaphorePermit)> {
        let turn = async {
            let open = if known { None } else { Some(self.open.clone().acquire_owned().await.ok()?) };
            Some((open, self.all.clone().acquire_owned().await.ok()?))
        };
        tokio::time::timeout(TURN, turn).await.ok().flatten()
    }
}

/// Whether a path asks a daemon for an answer, and not for a stream.
fn asks(path: &str) -> bool {
    let name = path.strip_prefix("/api/v1/").unwrap_or("");
    !name.is_empty() && !name.starts_with("demos") && !matches!(name, "events" | "openapi.json")
}

/// What a dashboard shows beside mounts.
#[derive(Clone, Default)]
pub struct Extras {
    /// The demos that can be run.
    pub demos: Option<Arc<Demos>>,
    /// A JupyterLab.
    pub lab: Option<Lab>,
}

impl App {
    /// For a dashboard at this address.
    pub fn new(
        daemons: Arc<dyn Daemons>,
        address: SocketAddr,
        token: Option<String>,
        extras: Extras,
        stopped: watch::Receiver<bool>,
    ) -> Arc<App> {
        let (streams, guard) = (Arc::new(Semaphore::new(STREAMS)), Arc::new(Guard::new(address, token)));
        let questions = Questions::default();
        Arc::new(App { daemons, guard, questions, live: Arc::default(), extras, streams, stopped })
    }

    /// What says which requests are answered, and who shows the token.
    pub fn guard(&self) -> Arc<Guard> {
        self.guard.clone()
    }

    /// A file of the page.
    fn file(&self, name: &str) -> Response {
        assets::file(name, self.extras.lab.as_ref().map(|lab| &*lab.origin))
    }

    /// The mount that a request names. Without a name, the only one or the first.
    fn mount(&self, name: Option<PathBuf>) -> Result<Shown, Failure> {
        let mut mounts = self.daemons.mounts().into_iter();
        let found = mounts.find(|mount| name.as_ref().is_none_or(|name| *name == mount.mountpoint));
        found.ok_or_else(|| match name {
            Some(name) => Failure::new("not-found", format!("{} is no mount that is shown", name.display()))
                .next("GET /api/v1/mounts lists them"),
            None => Failure::new("not-found", "nothing is mounted").next("covey up /mnt/covey"),
        })
    }
}

/// The mount and more, from a request's query.
#[derive(Deserialize)]
struct Asked {
    mount: Option<PathBuf>,
    path: Option<String>,
    top: Option<u32>,
    to: Option<u64>,
}

/// All paths.
pub fn router(app: Arc<App>) -> Router {
    let api = Router::new()
        .route("/mounts", get(mounts))
        .route("/status", get(status))
        .route("/heat", get(heat))
        .route("/fleet", get(fleet))
        .route("/requests", get(requests))
        .route("/metrics", get(metrics))
        .route("/events", get(events))
        .route("/openapi.json", get(described))
        .route("/flush", post(flush))
        .route("/gc", post(gc))
        .route("/evict", post(evict))
        .route("/members", get(members))
        .route("/demos", get(demos::state))
        .route("/demos/live", get(demos::live))
        .route("/demos/{demo}", post(demos::start).delete(demos::stop));
    Router::new()
        .nest("/api/v1", api)
        .route("/", get(async |State(app): Shared| app.file("")))
        .route("/{file}", get(async |State(app): Shared, Path(file): Path<String>| app.file(&file)))
        .layer(middleware::from_fn_with_state(app.clone(), admitted))
        .with_state(app)
}

async fn admitted(State(app): State<Arc<App>>, request: axum::extract::Request, next: Next) -> Response {
    match app.guard.admit(request.method(), request.headers()) {
        Ok(()) if asks(request.uri().path()) => {
            let known = app.guard.is_known(request.headers());
            let Some(turn) = app.questions.turn(known).await else {
                return (StatusCode::SERVICE_UNAVAILABLE, "too many questions are asked\n").into_response();
            };
            // On its own: a client that goes does not end the question, and must not give its turn back.
            let asked = tokio::spawn(async move {
                let _turn = turn;
                next.run(request).await
            });
            asked.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
        }
        Ok(()) => next.run(request).await,
        Err((status, why)) => (status, format!("{why}\n")).into_response(),
    }
}

type Shared = State<Arc<App>>;

/// Runs what blocks on another thread, and answers with its JSON.
async fn blocking(work: impl FnOnce() -> Result<Value, Failure> + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => axum::Json(value).into_response(),
        Ok(Err(failure)) => failed(&failure),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the question ended by a panic\n").into_response(),
    }
}

/// A daemon's failure. Its words are the body.
fn failed(failure: &Failure) -> Response {
    let status = match &*failure.code {
        "usage" => StatusCode::BAD_REQUEST,
        "not-found" | "no-fleet" | "no-cache" | "no-demos" => StatusCode::NOT_FOUND,
        "not-permitted" => StatusCode::FORBIDDEN,
        "demo-runs" => StatusCode::CONFLICT,
        "silent" | "no-answer" => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    (status, axum::Json(json!({ "error": failure }))).into_response()
}

async fn ask(app: Arc<App>, mount: Option<PathBuf>, request: Request) -> Response {
    blocking(move || app.daemons.ask(&app.mount(mount)?, &request)).await
}

async fn mounts(State(app): Shared) -> Response {
    let changes = app.guard.has_token();
    let lab = app.extras.lab.as_ref().map(|lab| lab.url.clone());
    blocking(move || {
        Ok(json!({ "mounts": app.daemons.mounts(), "changes": changes, "fleet": app.daemons.fleet(),
            "demos": app.extras.demos.is_some(), "lab": lab }))
    })
    .await
}

async fn members(State(app): Shared) -> Response {
    blocking(move || Ok(json!(app.daemons.members()?))).await
}

async fn status(State(app): Shared, Query(asked): Query<Asked>) -> Response {
    ask(app, asked.mount, Request::Status).await
}

async fn heat(State(app): Shared, Query(asked): Query<Asked>) -> Response {
    let top = asked.top.unwrap_or(CHUNKS).min(CHUNKS_MAX);
    ask(app, asked.mount, Request::Heat { path: asked.path.map(RawPath::Text), top }).await
}

async fn fleet(State(app): Shared, Query(asked): Query<Asked>) -> Response {
    ask(app, asked.mount, Request::Peers).await
}

/// The busiest operations, callers and files of the next second.
async fn requests(State(app): Shared, Query(asked): Query<Asked>) -> Response {
    blocking(move || {
        let mount = app.mount(asked.mount)?;
        let mut table = Value::Null;
        app.daemons.watch(&mount, &Wish::Top { interval_ms: 1_000 }, &mut |found| {
            table = found;
            false
        })?;
        Ok(table)
    })
    .await
}

async fn metrics(State(app): Shared, Query(asked): Query<Asked>) -> Response {
    let asked = move || app.daemons.ask(&app.mount(asked.mount)?, &Request::Metrics);
    match tokio::task::spawn_blocking(asked).await {
        Ok(Ok(Value::String(page))) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
        }
        Ok(Err(failure)) => failed(&failure),
        _ => StatusCode::BAD_GATEWAY.into_response(),
    }
}

async fn described() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("../openapi.json")).into_response()
}

async fn flush(State(app): Shared, Query(asked): Query<Asked>) -> Response {
    ask(app, asked.mount, Request::Flush).await
}

async fn gc(State(app): Shared, Query(asked): Query<Asked>) -> Response {
    ask(app, asked.mount, Request::Gc).await
}

async fn evict(State(app): Shared, Query(asked): Query<Asked>) -> Response {
    ask(app, asked.mount, Request::Evict { to: asked.to }).await
}

/// A message a second, until the browser ends the stream.
async fn events(State(app): Shared, Query(asked): Query<Asked>) -> Response {
    let Ok(slot) = app.streams.clone().try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many streams\n").into_response();
    };
    let there = app.clone();
    let found = tokio::task::spawn_blocking(move || there.mount(asked.mount)).await;
    let mount = match found {
        Ok(Ok(mount)) => mount,
        Ok(Err(failure)) => return failed(&failure),
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    let messages = app.live.follow(&app.daemons, mount);
    let state = (messages, app.stopped.clone(), slot);
    let stream = stream::unfold(state, async |(mut messages, mut stopped, slot)| {
        loop {
            let message = tokio::select! {
                message = messages.recv() => message,
                _ = stopped.wait_for(|stopped| *stopped) => return None,
            };
            match message {
                Ok(text) => {
                    let event = Ok::<_, Infallible>(Event::default().data(&*text));
                    return Some((event, (messages, stopped, slot)));
                }
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(SIGN_OF_LIFE)).into_response()
}
