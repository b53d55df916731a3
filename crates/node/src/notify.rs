//! Tells a service manager the state of a daemon: one datagram to the socket in `NOTIFY_SOCKET`, as
//! `Type=notify` of systemd expects. Does nothing without that variable.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that the mount is ready.
pub fn ready(status: &str) {
    send(&format!("READY=1\nMAINPID={}\nSTATUS={status}", std::process::id()));
}

/// Reports that the mount is about to end.
pub fn stopping() {
    send("STOPPING=1\nSTATUS=closing the volume");
}

fn send(state: &str) {
    if let Ok(name) = std::env::var("NOTIFY_SOCKET") {
        // If the service manager does not listen, it misses the news. The mount works all the same.
        let _ = send_to(&name, state);
    }
}

/// A name that begins with `@` is in the kernel's table and has no file.
fn send_to(name: &str, state: &str) -> std::io::Result<()> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name.as_bytes())?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_reach_a_file_and_a_name_without_one() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("notify");
        let hidden = format!("covey-test-{:x}", base::random::u64());
        let sockets = [
            (path.to_str().unwrap().to_owned(), UnixDatagram::bind(&path).unwrap()),
            (
                format!("@{hidden}"),
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&hidden).unwrap()).unwrap(),
            ),
        ];
        for (name, socket) in sockets {
            send_to(&name, "READY=1").unwrap();
            let mut got = [0; 32];
            let len = socket.recv(&mut got).unwrap();
            assert_eq!(&got[..len], b"READY=1");
        }
        assert!(send_to(temp.path().join("nobody").to_str().unwrap(), "x").is_err());
    }
}
