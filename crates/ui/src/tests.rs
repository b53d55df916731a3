//! The interface against daemons in this process: what it answers, and that `openapi.json` says so.

mod connections;
mod demos;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::control::Request;
use api::error::{Failure, Result};
use api::status::fleet::PeerRow;
use api::status::{Mode, Status};
use api::watch::{StatsLine, TopTable, Wish};
use axum::body::Body;
use axum::http::{Method, Request as HttpRequest};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::ServiceExt;

use crate::routes::{App, Extras, router};
use crate::server::{Bound, Options};
use crate::{Daemons, Shown};

const TOKEN: &str = "0123456789abcdef";

/// The paths below `/api/v1`, as `openapi.json` lists them.
const PATHS: [(&str, &str); 16] = [
    ("get", "/mounts"),
    ("get", "/status"),
    ("get", "/heat"),
    ("get", "/fleet"),
    ("get", "/requests"),
    ("get", "/metrics"),
    ("get", "/events"),
    ("get", "/openapi.json"),
    ("post", "/flush"),
    ("post", "/gc"),
    ("post", "/evict"),
    ("get", "/members"),
    ("get", "/demos"),
    ("get", "/demos/live"),
    ("post", "/demos/{demo}"),
    ("delete", "/demos/{demo}"),
];
/// The paths that `demos.rs` asks, and the stream.
const ASKED_ELSEWHERE: [&str; 3] = ["/events", "/demos/live", "/demos/{demo}"];

/// One daemon that answers, and one that is silent.
struct Two;

impl Daemons for Two {
    fn mounts(&self) -> Vec<Shown> {
        let mount =
            |name: &str| Shown { source: format!("/srv/{name}"), mountpoint: format!("/mnt/{name}").into() };
        vec![mount("a"), mount("silent")]
    }

    fn ask(&self, mount: &Shown, request: &Request) -> Result<Value> {
        if mount.mountpoint.ends_with("silent") {
            return Err(Failure::new("silent", "the daemon does not answer").next("covey status /mnt/silent"));
        }
        Ok(match request {
            Request::Status => json!(Status::empty("/srv/a".into(), Mode::Exclusive)),
            Request::Metrics => json!("covey_up 1\n"),
            Request::Heat { path, top } => {
                let program = json!({ "name": "pages_read", "runs": 1, "ns": 1 });
                let chunk = json!({ "path": path, "inode": 1, "mib": top, "score": 2.0, "hot": true, "reads": 1,
                    "maps": 0, "faults": 0, "requests": 0, "pages": 0, "why": "hot" });
                let heat = json!({ "view": "kernel", "unseen": [], "hot_from": 2.0, "half_life_s": 60.0,
                    "chunks": [chunk], "known": 1, "hot": 1, "events": 1, "delay_us": 1, "lost": 0, "protected": 0, "ahead": 0,
                    "programs": [program] });
                let heat: api::heat::Heat = serde_json::from_value(heat).unwrap();
                json!(heat)
            }
            Request::Peers => json!([]),
            Request::Flush | Request::Gc | Request::Evict { .. } => Value::Null,
            _ => return Err(Failure::usage("not asked here")),
        })
    }

    fn watch(&self, mount: &Shown, wish: &Wish, each: &mut dyn FnMut(Value) -> bool) -> Result<()> {
        self.ask(mount, &Request::Status)?;
        let note = match wish {
            Wish::Top { .. } => json!(TopTable::default()),
            _ => json!(StatsLine::default()),
        };
        while each(note.clone()) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Ok(())
    }

    fn fleet(&self) -> Option<String> {
        Some("10.0.0.1:7171".into())
    }

    fn members(&self) -> Result<Vec<PeerRow>> {
        let row = json!({ "node": "a", "address": "10.0.0.1:7171", "zone": "z", "role": "node", "generation": 1,
            "weight": 1, "free_mib": 5, "load_mib": 0, "state": "there" });
        Ok(vec![serde_json::from_value(row).unwrap()])
    }
}

fn app() -> axum::Router {
    let (stop, stopped) = watch::channel(false);
    std::mem::forget(stop);
    router(App::new(
        Arc::new(Two),
        "127.0.0.1:9879".parse().unwrap(),
        Some(TOKEN.into()),
        Extras::default(),
        stopped,
    ))
}

fn asked(method: &str, path: &str, token: &str) -> HttpRequest<Body> {
    HttpRequest::builder()
        .method(Method::from_bytes(method.to_uppercase().as_bytes()).unwrap())
        .uri(path)
        .header("host", "127.0.0.1:9879")
        .header("authorization", format!("Bearer {token}"))
        .body(Body::empty())
        .unwrap()
}

async fn answer(method: &str, path: &str) -> (u16, Vec<u8>) {
    let answer = app().oneshot(asked(method, path, TOKEN)).await.unwrap();
    let status = answer.status().as_u16();
    (status, answer.into_body().collect().await.unwrap().to_bytes().to_vec())
}

async fn json_of(method: &str, path: &str) -> (u16, Value) {
    let (status, body) = answer(method, path).await;
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn every_path_answers_what_the_description_says() {
    let described: Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
    let listed: BTreeSet<(String, String)> = described["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(|method| (method.clone(), path.clone()))
        })
        .collect();
    let served = PATHS.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())).collect();
    assert_eq!(listed, served);
    for (method, path) in PATHS.iter().filter(|(_, path)| !ASKED_ELSEWHERE.contains(path)) {
        let (status, body) = answer(method, &format!("/api/v1{path}")).await;
        assert_eq!(status, 200, "{method} {path}");
        let kinds = &described["paths"][path][method]["responses"]["200"]["content"];
        if let Some(schema) = kinds["application/json"].get("schema") {
            fits(&described, schema, &serde_json::from_slice(&body).unwrap(), path);
        }
    }
}

/// Whether a value has what a schema requires, and nothing of another type.
fn fits(described: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        return fits(described, &described["components"]["schemas"][name], value, name);
    }
    let kind = |name: &str| match name {
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => value.is_null(),
    };
    match &schema["type"] {
        Value::String(name) => assert!(kind(name), "{at}: {value} is no {name}"),
        Value::Array(names) => {
            assert!(names.iter().any(|name| kind(name.as_str().unwrap())), "{at}: {value}")
        }
        _ => {}
    }
    for name in schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()) {
        assert!(value.get(name).is_some(), "{at} has no {name}: {value}");
        fits(described, &schema["properties"][name], &value[name], &format!("{at}.{name}"));
    }
    value.as_array().into_iter().flatten().for_each(|item| fits(described, &schema["items"], item, at));
}

#[tokio::test]
async fn failures_have_a_status_and_the_daemons_words() {
    let (status, silent) = json_of("get", "/api/v1/status?mount=/mnt/silent").await;
    assert_eq!((status, &silent["error"]["code"]), (504, &"silent".into()));
    assert_eq!(silent["error"]["next"][0], "covey status /mnt/silent");
    assert_eq!(json_of("get", "/api/v1/heat?mount=/mnt/other").await.0, 404);
    assert_eq!(answer("get", "/api/v1/heat?top=many").await.0, 400);
    assert_eq!(answer("get", "/nothing").await.0, 404);
    assert_eq!(answer("post", "/api/v1/status").await.0, 405);
    let wrong = app().oneshot(asked("post", "/api/v1/gc", "wrong")).await.unwrap();
    assert_eq!(wrong.status().as_u16(), 401);
    let (_, heat) = json_of("get", "/api/v1/heat?path=a/b&top=9").await;
    assert_eq!((&heat["chunks"][0]["path"], &heat["chunks"][0]["mib"]), (&"a/b".into(), &9.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_sends_figures_until_the_browser_leaves() {
    for (mount, what) in [("/mnt/a", "\"stats\""), ("/mnt/silent", "\"silent\"")] {
        let path = format!("/api/v1/events?mount={mount}");
        let mut body = app().oneshot(asked("get", &path, TOKEN)).await.unwrap().into_body();
        let mut text = String::new();
        while !text.contains("\n\n") {
            let frame = body.frame().await.unwrap().unwrap();
            text += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
        }
        assert!(text.starts_with("data: {") && text.contains(what), "{text}");
    }
}

/// Only its mode was looked at, so another user could place a token that it knows.
#[test]
fn regression_a_token_of_another_user_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let token = temp.path().join("token");
    let options = Options {
        listen: "127.0.0.1:0".into(),
        insecure: false,
        token: Some(token.clone()),
        demos: None,
        lab: None,
    };
    drop(Bound::new(&options).unwrap());
    assert!(Bound::new(&options).is_ok(), "its own");
    std::fs::hard_link(&token, temp.path().join("again")).unwrap();
    assert!(Bound::new(&options).err().unwrap().to_string().contains("one name"));
    std::fs::remove_file(temp.path().join("again")).unwrap();
    if api::caller::euid() == 0 {
        std::os::unix::fs::chown(&token, Some(1234), None).unwrap();
        assert!(Bound::new(&options).err().unwrap().to_string().contains("user 1234"));
    }
}

#[test]
fn a_listener_has_an_address_and_a_token_of_its_own() {
    let temp = tempfile::tempdir().unwrap();
    let token = temp.path().join("token");
    let options = Options {
        listen: "127.0.0.1:0".into(),
        insecure: false,
        token: Some(token.clone()),
        demos: None,
        lab: None,
    };
    let bound = Bound::new(&options).unwrap();
    assert_eq!(std::fs::read_to_string(&token).unwrap().trim().len(), 32);
    let again = Options { listen: bound.address().to_string(), ..options.clone() };
    assert!(Bound::new(&again).err().unwrap().to_string().contains("free port"));
    let open = Options { listen: "0.0.0.0:0".into(), ..options.clone() };
    assert!(Bound::new(&open).err().unwrap().to_string().contains("--ui-insecure"));
    assert!(Bound::new(&Options { insecure: true, ..open }).is_ok());
    std::fs::write(&token, "short\n").unwrap();
    assert!(Bound::new(&options).err().unwrap().to_string().contains("holds no token"));
    std::process::Command::new("chmod").arg("644").arg(&token).status().unwrap();
    assert!(Bound::new(&options).err().unwrap().to_string().contains("chmod 600"));
    let server = bound.serve(Arc::new(Two)).unwrap();
    let address = server.address();
    assert!(std::net::TcpStream::connect(address).is_ok());
    drop(server);
    assert!(std::net::TcpStream::connect(address).is_err(), "it has ended");
}
