//! The demos: which one runs, how one begins and ends, and what it says.

use std::sync::Arc;

use api::error::Failure;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::{App, Shared, blocking, failed};
use crate::demo::{Demo, Demos};

/// Bytes of a message from a page. Pages send none.
const MESSAGE_MAX: usize = 1 << 10;

/// How a demo is run.
#[derive(Deserialize)]
pub struct Form {
    #[serde(default)]
    small: bool,
}

impl App {
    fn demos(&self) -> Result<Arc<Demos>, Failure> {
        self.extras.demos.clone().ok_or_else(|| {
            Failure::new("no-demos", "this dashboard runs no demos")
                .next("covey ui --demos FOLDER --ui-token FILE; FOLDER is a checkout of the project")
        })
    }
}

/// What runs. Without demos, nothing.
pub async fn state(State(app): Shared) -> Response {
    let none = || json!({ "folder": null, "running": false, "demo": null, "small": false, "ok": null });
    axum::Json(app.extras.demos.as_ref().map_or_else(none, |demos| demos.state())).into_response()
}

/// Starts a demo.
pub async fn start(State(app): Shared, Path(demo): Path<Demo>, Query(form): Query<Form>) -> Response {
    blocking(move || app.demos()?.start(demo, form.small)).await
}

/// Stops a demo, and answers when it has removed what it made.
pub async fn stop(State(app): Shared, Path(demo): Path<Demo>) -> Response {
    let stopped = match app.demos() {
        Ok(demos) => demos.stop(demo).await,
        Err(failure) => Err(failure),
    };
    stopped.map_or_else(|failure| failed(&failure), |done| axum::Json(done).into_response())
}

/// What the demo said so far, and then each message, over a WebSocket.
pub async fn live(State(app): Shared, upgrade: WebSocketUpgrade) -> Response {
    let demos = match app.demos() {
        Ok(demos) => demos,
        Err(failure) => return failed(&failure),
    };
    let Ok(slot) = app.streams.clone().try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many streams\n").into_response();
    };
    let stopped = app.stopped.clone();
    upgrade.max_message_size(MESSAGE_MAX).on_upgrade(move |socket| follow(socket, demos, stopped, slot))
}

async fn follow(
    mut socket: WebSocket,
    demos: Arc<Demos>,
    mut stopped: watch::Receiver<bool>,
    slot: OwnedSemaphorePermit,
) {
    tokio::select! {
        () = send(&mut socket, &demos) => {}
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    drop(slot);
}

/// Sends until the page leaves. A page that was too slow gets everything anew.
async fn send(socket: &mut WebSocket, demos: &Demos) {
    loop {
        let (kept, mut news) = demos.follow();
        for message in kept {
            if socket.send(Message::text(&*message)).await.is_err() {
                return;
            }
        }
        loop {
            let message = tokio::select! {
                message = news.recv() => message,
                said = socket.recv() => match said {
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                    Some(Ok(_)) => continue,
                },
            };
            match message {
                Ok(message) if socket.send(Message::text(&*message)).await.is_err() => return,
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return,
            }
        }
    }
}
