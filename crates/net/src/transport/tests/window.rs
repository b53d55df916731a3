//! How connections begin, and how much may be in flight on them.

use std::ffi::CStr;
use std::os::fd::AsRawFd;

use base::size::BLOB_MAX;
use tokio::net::TcpStream;

use super::*;
use crate::transport::link::Link;
use crate::transport::socket;

/// An option of a socket, as reported by the kernel.
fn option(stream: &TcpStream, name: i32) -> [u8; 16] {
    let (mut value, mut len) = ([0u8; 16], 16 as libc::socklen_t);
    let at = value.as_mut_ptr().cast();
    // SAFETY: the descriptor is open, and the kernel writes at most 16 bytes and their number to places that
    // live through the call.
    let failed = unsafe { libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, name, at, &raw mut len) };
    assert_eq!(failed, 0);
    value
}

fn sharing(stream: &TcpStream) -> String {
    let name = option(stream, libc::TCP_CONGESTION);
    CStr::from_bytes_until_nul(&name).unwrap().to_str().unwrap().to_owned()
}

/// Cubic stopped doubling when acknowledgements queued behind what the sender received: a stream needed eight
/// seconds until its link was full.
#[test]
fn regression_a_connection_looks_at_round_trips_only_when_a_blob_has_gone() {
    let known =
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap_or_default();
    if !["reno", "cubic"].iter().all(|name| known.split_whitespace().any(|other| other == *name)) {
        eprintln!("this kernel allows {known:?}, and neither reno nor cubic with it: skipped");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        socket::prepare(&stream, 1000);
        assert_eq!(sharing(&stream), "reno");
        let link = Link::plain(stream);
        link.count_sent(BLOB_MAX - 1);
        assert_eq!(sharing(link.socket()), "reno");
        link.count_sent(1);
        assert_eq!(sharing(link.socket()), "cubic");
    });
}

#[test]
fn what_is_on_its_way_is_bounded_by_what_the_line_carries() {
    let (here, _there, store, peer) = pair(|_| {});
    let id = store.keep(&noise(4 << 20, 1));
    let clamps = || -> Vec<u32> {
        here.fetch_into(peer, &Arriving::new(id, Verify::Blake3), TIME).wait().unwrap();
        let clamp = |link: &Arc<Link>| {
            let value = option(link.socket(), libc::TCP_WINDOW_CLAMP);
            u32::from_ne_bytes(*value.first_chunk().unwrap())
        };
        here.0.shared.peers.links(Class::Bulk).iter().map(clamp).collect()
    };
    // The kernel changes it whenever it enlarges its buffer, which happens a few times.
    here.carries(60_000_000);
    until("a wide line has a wide window", || clamps() == [9_600_000]);
    here.carries(0);
    until("a narrow one has a narrow window", || clamps() == [1 << 20]);
}
