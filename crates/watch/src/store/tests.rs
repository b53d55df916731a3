//! The programs on crafted packets. No packet is sent: the kernel runs a program on bytes that it is given.

use aya::programs::{TestRun, TestRunOptions};

use super::*;

const PORT: u16 = 9000;
const CLIENT: u16 = 40_001;

/// A loaded object, or none if this process may not load it.
fn watch(hot: u32) -> Option<StoreWatch> {
    let heat = Heat { hot, half_life: std::time::Duration::ZERO };
    let target = Target { interface: String::new(), port: PORT, cgroup: None, heat };
    match StoreWatch::load(&target, 14) {
        Ok(watch) => Some(watch),
        Err(error @ (WatchError::NotPermitted(_) | WatchError::NoBtf)) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The layers below TCP.
#[derive(Clone, Copy, Debug)]
enum Below {
    Ipv4,
    Ipv6,
    Vlan,
}

/// A packet with a TCP segment.
fn packet(below: Below, sent: bool, seq: u32, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = if sent { (CLIENT, PORT) } else { (PORT, CLIENT) };
    let mut tcp = Vec::new();
    tcp.extend_from_slice(&source.to_be_bytes());
    tcp.extend_from_slice(&destination.to_be_bytes());
    tcp.extend_from_slice(&seq.to_be_bytes());
    tcp.extend_from_slice(&[0, 0, 0, 0, 5 << 4, 0x18, 1, 0, 0, 0, 0, 0]);
    tcp.extend_from_slice(payload);
    let (client, store) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let (from, to) = if sent { (client, store) } else { (store, client) };
    let mut out = vec![2; 12];
    if let Below::Vlan = below {
        out.extend_from_slice(&[0x81, 0x00, 0x00, 0x05]);
    }
    match below {
        Below::Ipv4 | Below::Vlan => {
            out.extend_from_slice(&[0x08, 0x00, 0x45, 0]);
            out.extend_from_slice(&(20 + tcp.len() as u16).to_be_bytes());
            out.extend_from_slice(&[0, 0, 0x40, 0, 64, 6, 0, 0]);
            out.extend_from_slice(&from);
            out.extend_from_slice(&to);
        }
        Below::Ipv6 => {
            out.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
            out.extend_from_slice(&(tcp.len() as u16).to_be_bytes());
            out.extend_from_slice(&[6, 64]);
            for address in [from, to] {
                out.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                out.extend_from_slice(&address);
            }
        }
    }
    out.extend_from_slice(&tcp);
    out
}

fn run(watch: &StoreWatch, sent: bool, bytes: &[u8]) -> u32 {
    let name = if sent { "store_requests" } else { "store_responses" };
    let Some(Program::SchedClassifier(program)) = watch.object.program(name) else { panic!("no {name}") };
    let options = TestRunOptions { data_in: Some(bytes), ..TestRunOptions::default() };
    program.test_run(options).unwrap().return_value
}

fn ask(watch: &StoreWatch, below: Below, seq: u32, line: &str) {
    let text = format!("{line}\r\nHost: 10.0.0.2:9000\r\nAuthorization: AWS4-HMAC-SHA256 x\r\n\r\n");
    assert_eq!(run(watch, true, &packet(below, true, seq, text.as_bytes())), u32::MAX, "the packet goes on");
}

fn answer(watch: &StoreWatch, below: Below, status: &str) {
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
    run(watch, false, &packet(below, false, 1, text.as_bytes()));
}

#[test]
fn requests_and_responses_are_counted_over_ipv4_ipv6_and_vlans() {
    for below in [Below::Ipv4, Below::Ipv6, Below::Vlan] {
        let Some(watch) = watch(100) else { return };
        ask(&watch, below, 100, "GET /bucket/a%20key?versionId=7 HTTP/1.1");
        answer(&watch, below, "200 OK");
        ask(&watch, below, 900, "GET /bucket/a%20key HTTP/1.1");
        answer(&watch, below, "404 Not Found");
        ask(&watch, below, 1_900, "PUT /bucket/b HTTP/1.1");
        answer(&watch, below, "503 Slow Down");
        let totals = watch.totals().unwrap();
        assert_eq!((totals.requests, totals.responses, totals.keepalive), (3, 3, 2), "{below:?}: {totals:?}");
        assert_eq!((totals.get, totals.put, totals.status), (2, 1, [1, 0, 1, 1]), "{below:?}: {totals:?}");
        let mut chunks = watch.chunks().unwrap();
        chunks.sort_by(|a, b| a.path.cmp(&b.path));
        let seen: Vec<_> =
            chunks.iter().map(|it| (it.path.as_str(), it.requests, it.errors, it.status)).collect();
        assert_eq!(seen, [("/bucket/a%20key", 2, 1, 404), ("/bucket/b", 1, 1, 503)], "{below:?}");
        assert_eq!(watch.latency().unwrap().count(), 3);
    }
}

#[test]
fn a_range_names_its_mib_wherever_the_header_stands() {
    let Some(watch) = watch(100) else { return };
    for pad in 0..8_u32 {
        let padding = "x".repeat(pad as usize);
        let line = format!("GET /b/o HTTP/1.1\r\nX-Pad: {padding}\r\nRange: bytes={}-", (pad + 1) << 20);
        ask(&watch, Below::Ipv4, 1_000 * (pad + 1), &line);
    }
    let mut chunks: Vec<u32> = watch.chunks().unwrap().iter().map(|chunk| chunk.chunk).collect();
    chunks.sort_unstable();
    assert_eq!(chunks, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(watch.totals().unwrap().ranges, 8);
}

#[test]
fn requests_of_covey_are_counted_apart_wherever_the_header_stands() {
    let Some(watch) = watch(100) else { return };
    for pad in 0..8_u32 {
        let padding = "x".repeat(pad as usize);
        let line = format!("GET /b/covey/o HTTP/1.1\r\nX-Pad: {padding}\r\nuser-agent: covey/1.2.3");
        ask(&watch, Below::Ipv4, 1_000 * (pad + 1), &line);
        answer(&watch, Below::Ipv4, "200 OK");
    }
    // Others that speak of Covey.
    ask(&watch, Below::Ipv4, 9_000, "GET /covey/covey/ HTTP/1.1\r\nx-user: covey/1");
    answer(&watch, Below::Ipv4, "200 OK");
    let totals = watch.totals().unwrap();
    assert_eq!((totals.own_requests, totals.own_responses), (8, 8), "{totals:?}");
    assert_eq!((totals.requests, totals.responses), (1, 1), "{totals:?}");
    assert_eq!(watch.chunks().unwrap().len(), 1, "a fetch is no access");
}

#[test]
fn what_is_no_request_is_not_counted() {
    let Some(watch) = watch(100) else { return };
    // A line that goes on in the next segment.
    run(&watch, true, &packet(Below::Ipv4, true, 1, b"GET /bucket/a-key-that-goes-on-in-the-next-segm"));
    // The rest of an upload, which looks like nothing, and one that begins like a request.
    run(&watch, true, &packet(Below::Ipv4, true, 2, &[7; 900]));
    run(&watch, true, &packet(Below::Ipv4, true, 3, b"GET that is a text in an upload\r\nand goes on"));
    // No payload at all, and packets that are cut. The kernel itself refuses shorter ones.
    run(&watch, true, &packet(Below::Ipv4, true, 4, b""));
    for len in 34..60 {
        run(&watch, true, &packet(Below::Ipv4, true, 5, b"GET /b/k HTTP/1.1\r\n\r\n")[..len]);
    }
    let totals = watch.totals().unwrap();
    assert_eq!((totals.requests, totals.split), (0, 1), "{totals:?}");
}

#[test]
fn a_segment_that_is_sent_again_counts_once() {
    let Some(watch) = watch(100) else { return };
    for seq in [500, 500, 400] {
        ask(&watch, Below::Ipv4, seq, "GET /b/k HTTP/1.1");
    }
    let totals = watch.totals().unwrap();
    assert_eq!((totals.requests, totals.retransmitted), (1, 2));
}

#[test]
fn a_chunk_becomes_hot_once() {
    let Some(mut watch) = watch(3) else { return };
    for n in 1..=6 {
        ask(&watch, Below::Ipv4, 1_000 * n, "GET /b/hot HTTP/1.1");
        ask(&watch, Below::Ipv4, 1_000 * n + 500, &format!("GET /b/cold-{n} HTTP/1.1"));
    }
    let mut hot = Vec::new();
    watch.events().drain(&mut |event| hot.push(event));
    assert!(matches!(hot[..], [crate::Event::Hot { count: 3, chunk: 0, .. }]), "{hot:?}");
    let chunks = watch.chunks().unwrap();
    assert_eq!(chunks.iter().filter(|chunk| chunk.hot).count(), 1);
    assert_eq!(chunks.len(), 7);
}

/// An upper bound with much room: the verifier and the figure in docs/WATCH.md say what it is here.
#[test]
fn the_kernel_says_what_the_programs_cost() {
    let Some(watch) = watch(100) else { return };
    ask(&watch, Below::Ipv4, 1, "GET /b/k HTTP/1.1");
    let costs = watch.costs();
    assert_eq!(costs.len(), 3);
    assert!(costs.iter().any(|cost| cost.program == "store_requests"));
}
