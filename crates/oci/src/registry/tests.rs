//! The client against a server in this process, which does what a test says with each request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::reference::Reference;
use super::{Fault, Registry, body, in_time};
use crate::Blobs;
use crate::digest::Digest;
use crate::manifest::Descriptor;

/// A request: its first line, and its headers in lower case.
#[derive(Clone, Debug)]
struct Asked {
    line: String,
    headers: String,
}

type Seen = Arc<Mutex<Vec<Asked>>>;

/// Serves until the test ends. `answer` writes the whole answer to a request, which has this number.
fn server(answer: impl Fn(usize, &Asked, &mut TcpStream) + Send + 'static) -> (String, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let seen: Seen = Arc::default();
    let noted = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let Some(Ok(line)) = lines.next() else { continue };
            let headers: Vec<String> =
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let asked = Asked { line, headers: headers.join("\n").to_lowercase() };
            let number = {
                let mut noted = noted.lock().unwrap();
                noted.push(asked.clone());
                noted.len() - 1
            };
            answer(number, &asked, &mut stream);
        }
    });
    (host, seen)
}

fn reply(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let head =
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body);
}

fn registry(host: &str) -> Registry {
    Registry::new(&Reference::parse(&format!("{host}/some/app:1")).unwrap()).unwrap()
}

fn read(registry: &Registry, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut body = registry
        .open(&Descriptor::of("", bytes))
        .map_err(|failure| std::io::Error::other(failure.in_one_line()))?;
    body.read_to_end(&mut out).map(|_| out)
}

/// Bytes that do not repeat.
fn long() -> Vec<u8> {
    (0..300_000u32).flat_map(u32::to_le_bytes).collect()
}

/// The connection breaks twice. What has arrived is not fetched again.
#[test]
fn a_blob_goes_on_where_it_broke() {
    let bytes = long();
    let whole = bytes.clone();
    let (host, seen) = server(move |number, asked, stream| {
        let from = asked.headers.split("range: bytes=").nth(1);
        let from: usize = from.map_or(0, |text| text.split('-').next().unwrap().parse().unwrap());
        let rest = &whole[from..];
        let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
        let head =
            format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", rest.len());
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(if number < 2 { &rest[..400_000] } else { rest });
    });
    assert_eq!(read(&registry(&host), &bytes).unwrap(), bytes);
    let seen = seen.lock().unwrap();
    let ranges: Vec<bool> = seen.iter().map(|asked| asked.headers.contains("range: ")).collect();
    assert_eq!(ranges, [false, true, true]);
    assert!(seen[2].line.starts_with(&format!("GET /v2/some/app/blobs/{} ", Digest::of(&bytes))));
}

/// The connection breaks, and the registry knows no ranges: it always sends everything.
#[test]
fn a_registry_without_ranges_is_read_over() {
    let bytes = long();
    let whole = bytes.clone();
    let (host, seen) = server(move |number, _, stream| {
        let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", whole.len());
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(if number == 0 { &whole[..500_001] } else { &whole });
    });
    assert_eq!(read(&registry(&host), &bytes).unwrap(), bytes);
    assert_eq!(seen.lock().unwrap().len(), 2);
}

/// Tries are bounded, and a refusal is not tried again.
#[test]
fn retries_end() {
    let (host, seen) = server(|_, _, stream| reply(stream, "503 Service Unavailable", "", b""));
    let failure = registry(&host).named().unwrap_err();
    assert_eq!((&*failure.code, seen.lock().unwrap().len()), ("no-answer", 5), "{failure}");
    let (host, seen) = server(|_, _, stream| {
        let body = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no such tag"}]}"#;
        reply(stream, "404 Not Found", "", body);
    });
    let failure = registry(&host).named().unwrap_err();
    assert_eq!((&*failure.code, seen.lock().unwrap().len()), ("not-found", 1));
    assert!(failure.in_one_line().contains("MANIFEST_UNKNOWN no such tag"), "{failure}");
}

#[test]
fn a_registry_that_is_not_there_is_one_clear_line() {
    let free = base::trial::stop(TcpListener::bind("127.0.0.1:0").unwrap());
    let failure = registry(&free.to_string()).named().unwrap_err();
    assert_eq!(failure.what, format!("the registry {free} does not answer"));
    assert!(failure.why[0].to_lowercase().contains("refused"), "{failure}");
}

/// A host to which the registry redirects could say where the user's password is to be sent.
#[test]
fn regression_a_password_goes_to_no_place_that_another_host_names() {
    let (thief, stolen) = server(|_, _, stream| reply(stream, "200 OK", "", br#"{"token":"abc"}"#));
    let (other, asked) = server(move |_, _, stream| {
        let wants = format!("WWW-Authenticate: Bearer realm=\"http://{thief}/token\"\r\n");
        reply(stream, "401 Unauthorized", &wants, b"");
    });
    let (host, _) = server(move |_, asked, stream| {
        let path = asked.line.split(' ').nth(1).unwrap();
        reply(stream, "307 Temporary Redirect", &format!("Location: http://{other}{path}\r\n"), b"");
    });
    let failure = registry(&host).named().unwrap_err();
    assert!(failure.in_one_line().contains("redirects to 127.0.0.1"), "{failure}");
    assert_eq!((asked.lock().unwrap().len(), stolen.lock().unwrap().len()), (1, 0));
}

/// A token is had where the registry says, and used for what follows.
#[test]
fn a_token_is_fetched_once() {
    let manifest = br#"{"schemaVersion":2}"#;
    let (host, seen) = server(move |_, asked, stream| {
        let host = asked.headers.split("host: ").nth(1).unwrap().lines().next().unwrap().to_owned();
        if asked.line.starts_with("GET /token?") {
            return reply(stream, "200 OK", "", br#"{"token":"abc"}"#);
        }
        if !asked.headers.contains("authorization: bearer abc") {
            let wants =
                format!("WWW-Authenticate: Bearer realm=\"http://{host}/token\",service=\"here\"\r\n");
            return reply(stream, "401 Unauthorized", &wants, b"");
        }
        reply(stream, "200 OK", "Content-Type: application/vnd.oci.image.manifest.v1+json\r\n", manifest);
    });
    let registry = registry(&host);
    let found = registry.named().unwrap();
    assert_eq!((found.digest, &*found.media_type), (Digest::of(manifest), crate::manifest::MANIFESTS[0]));
    registry.named().unwrap();
    let lines: Vec<String> = seen.lock().unwrap().iter().map(|asked| asked.line.clone()).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[1].contains("service=here&scope=repository%3Asome%2Fapp%3Apull"), "{lines:?}");
}

/// What the registry sends must be what it says, and what was asked for.
#[test]
fn a_manifest_must_match_its_digest() {
    let said = format!("Docker-Content-Digest: {}\r\n", Digest::of(b"other"));
    let (host, _) = server(move |_, _, stream| reply(stream, "200 OK", &said, b"{}"));
    assert_eq!(registry(&host).named().unwrap_err().code, "damaged");
    let (host, _) = server(|_, _, stream| reply(stream, "200 OK", "", b"{}"));
    let pinned = Reference::parse(&format!("{host}/some/app@{}", Digest::of(b"other"))).unwrap();
    assert_eq!(Registry::new(&pinned).unwrap().named().unwrap_err().code, "damaged");
}

/// A registry of this machine may not send its clients elsewhere without TLS.
#[test]
fn a_move_to_a_place_without_tls_is_not_followed() {
    let (host, _) = server(|_, _, stream| {
        reply(stream, "307 Temporary Redirect", "Location: http://192.0.2.1/blob\r\n", b"");
    });
    let failure = registry(&host).named().unwrap_err();
    assert!(failure.in_one_line().contains("without TLS"), "{failure}");
}

/// An answer without an end takes no memory without an end.
#[test]
fn a_manifest_has_a_bound() {
    let (host, _) = server(|_, _, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        while stream.write_all(&[b' '; 65536]).is_ok() {}
    });
    assert_eq!(registry(&host).named().unwrap_err().code, "damaged");
}

/// A byte now and then restarted the limit each time, and an import waited for ever.
#[test]
fn regression_an_answer_that_drips_ends() {
    let (host, _) = server(|_, _, stream| {
        let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n";
        let _ = stream.write_all(head);
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let registry = registry(&host);
    let url = registry.url("manifests/1").unwrap();
    let got = registry.0.runtime.block_on(async {
        let Ok(response) = registry.send(&url, 0).await else { panic!("no answer") };
        in_time(Duration::from_secs(1), body(response)).await
    });
    match got {
        Err(Fault::Again(why, None)) => assert!(why.contains("more than 1 s"), "{why}"),
        other => panic!("{}", other.is_ok()),
    }
}
