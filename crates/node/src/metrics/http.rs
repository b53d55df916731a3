//! The part of HTTP that a page of figures needs: GET /metrics. Every read and write is bounded in length and
//! time, and callers that only hold places give them up ([`base::places`]).

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::places::{Limits, Peer, Places};

/// The largest head of a request.
const HEAD_MAX: usize = 8 << 10;
/// The time that a caller has to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Callers at a time. The page is rendered for one of them at a time.
const CALLERS: usize = 16;

/// What renders the page.
pub type Render = Box<dyn Fn() -> String + Send>;

/// Answers forever. `page` renders the page.
pub fn serve(door: &TcpListener, page: Render) {
    let (places, page) = (Places::new(Limits::of(CALLERS)), Arc::new(Mutex::new(page)));
    loop {
        let accepted = door.accept().and_then(|(caller, from)| Ok((caller.try_clone()?, caller, from)));
        let Ok((cut, caller, from)) = accepted else {
            // For example, no descriptor is left. That may pass.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let end = move || drop(cut.shutdown(Shutdown::Both));
        // Nobody has a key here, so a place is always given up.
        let Ok(place) = places.enter(Peer::of_address(from.ip()), false, end) else { continue };
        let page = page.clone();
        let answer = move || {
            let _place = place;
            answer(&caller, &|| page.lock().unwrap_or_else(PoisonError::into_inner)());
        };
        // Without a thread the caller gets no answer, and asks again.
        let _ = base::thread::spawn("covey-scrape", answer);
    }
}

fn answer(mut caller: &TcpStream, page: &dyn Fn() -> String) {
    let _ = caller.set_write_timeout(Some(PATIENCE));
    let (status, body) = match head(caller) {
        Some(head) => respond(&head, page),
        None => ("400 Bad Request", "this is no request that is understood here\n".to_owned()),
    };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    // A caller that does not take its answer gets none.
    let _ = caller.write_all(text.as_bytes());
    let _ = caller.shutdown(Shutdown::Write);
}

/// The first line of a request, once its head is complete.
fn head(mut caller: &TcpStream) -> Option<String> {
    let until = base::time::monotonic() + PATIENCE;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    loop {
        let left = until.checked_duration_since(base::time::monotonic()).filter(|left| !left.is_zero())?;
        caller.set_read_timeout(Some(left)).ok()?;
        let len = caller.read(&mut part).ok().filter(|len| *len > 0)?;
        head.extend_from_slice(&part[..len]);
        if head.windows(4).any(|four| four == b"\r\n\r\n") {
            return Some(String::from_utf8_lossy(&head).lines().next()?.to_owned());
        }
        if head.len() > HEAD_MAX {
            return None;
        }
    }
}

fn respond(line: &str, page: &dyn Fn() -> String) -> (&'static str, String) {
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    match (method, path) {
        ("GET", "/metrics") => ("200 OK", page()),
        ("GET", _) => ("404 Not Found", "the figures are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET is understood here\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: std::net::SocketAddr, text: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        // The server may hang up on a caller that sends too much before everything is sent.
        let _ = stream.write_all(text);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn what_is_asked_is_answered_and_nothing_else() {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = door.local_addr().unwrap();
        std::thread::spawn(move || serve(&door, Box::new(|| "figures 1\n".to_owned())));
        let page = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\r\n\r\nfigures 1\n"), "{page}");
        assert!(page.contains("Content-Length: 10\r\n"));
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("\r\n\r\n", "405"),
            ("GET /metrics HTTP/1.1\r\n", "400"),
        ] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
        }
        // A silent caller does not delay the next one for long. A caller that sends too much is disconnected.
        let silent = TcpStream::connect(address).unwrap();
        ask(address, &vec![b'x'; 100 << 10]);
        assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").contains("figures"));
        drop(silent);
    }

    /// Each silent caller delayed all others for three seconds.
    #[test]
    fn regression_silent_callers_keep_nobody_waiting() {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = door.local_addr().unwrap();
        std::thread::spawn(move || serve(&door, Box::new(|| "figures 1\n".to_owned())));
        // All of them together would take minutes.
        let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
        let begin = base::time::monotonic();
        assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").contains("figures"));
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
        drop(silent);
    }
}
