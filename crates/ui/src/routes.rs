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
use tokio::sync::{Semaphore, watch};

use crate::demo::Demos;
use crate::guard::Guard;
use crate::lab::Lab;
use crate::live::Live;
use crate::{Daemons, Shown, assets};

/// Streams at a time.
pub const STREAMS: usize = 64;
/// A stream without messages gets a sign of life this often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// Chunks in an answer about heat, unless more are asked for, and at most.
const CHUNKS: u32 = 500;
const CHUNKS_MAX: u32 = 65_536;

/// What handlers share.
pub struct App {
    daemons: Arc<dyn Daemons>,
    guard: Guard,
    live: Arc<Live>,
    extras: Extras,
    streams: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
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
        let (streams, guard) = (Arc::new(Semaphore::new(STREAMS)), Guard::new(address, token));
        Arc::new(App { daemons, guard, live: Arc::default(), extras, streams, stopped })
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
