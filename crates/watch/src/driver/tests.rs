//! The program on crafted packets. No packet is sent: the kernel runs a program on bytes that it is given.

use aya::programs::{TestRun, TestRunOptions};

use super::*;

const SERVED: u16 = 9000;
const ASKED: u16 = 7171;
const PASS: u32 = 2;
const TX: u32 = 3;

fn watch() -> Option<DriverWatch> {
    let target = Target { interface: String::new(), served_port: SERVED, asked_port: ASKED };
    match DriverWatch::load(&target) {
        Ok(watch) => Some(watch),
        Err(error @ (WatchError::NotPermitted(_) | WatchError::NoBtf)) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A packet of IPv4 or IPv6, behind an optional VLAN tag.
fn packet(ipv6: bool, vlan: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2];
    if vlan {
        out.extend_from_slice(&[0x81, 0x00, 0x00, 0x05]);
    }
    if ipv6 {
        out.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        out.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        out.extend_from_slice(&[protocol, 64]);
        for last in [1, 2] {
            out.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
    } else {
        out.extend_from_slice(&[0x08, 0x00, 0x45, 0]);
        out.extend_from_slice(&(20 + payload.len() as u16).to_be_bytes());
        out.extend_from_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    out.extend_from_slice(payload);
    out
}

fn request(line: &str) -> Vec<u8> {
    let mut tcp = [40_001_u16.to_be_bytes(), SERVED.to_be_bytes()].concat();
    tcp.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, 0x18, 1, 0, 0, 0, 0, 0]);
    tcp.extend_from_slice(line.as_bytes());
    tcp
}

fn question(names: &[Name]) -> Vec<u8> {
    let mut udp = [50_000_u16.to_be_bytes(), ASKED.to_be_bytes(), 148_u16.to_be_bytes()].concat();
    udp.extend_from_slice(&[0xab, 0xcd, 3, 0, names.len() as u8, 0, 9, 8, 7, 6, 5, 4, 3, 2]);
    for n in 0..8 {
        udp.extend_from_slice(names.get(n).unwrap_or(&[0; 16]));
    }
    udp
}

fn run(watch: &DriverWatch, bytes: &[u8]) -> (u32, Vec<u8>) {
    let Some(Program::Xdp(program)) = watch.object.program("asked_of_us") else { panic!("no program") };
    let mut out = vec![0; 2048];
    let options =
        TestRunOptions { data_in: Some(bytes), data_out: Some(&mut out), ..TestRunOptions::default() };
    let done = program.test_run(options).unwrap();
    let len = done.data_size_out as usize;
    out.truncate(len);
    (done.return_value, out)
}

/// The sum over a datagram and its pseudo header, which is all ones if the checksum is right.
fn checked(addresses: &[u8], udp: &[u8]) -> u32 {
    let mut all = addresses.to_vec();
    all.extend_from_slice(&[0, 17]);
    all.extend_from_slice(&(udp.len() as u16).to_be_bytes());
    all.extend_from_slice(udp);
    let words = all.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn requests_are_counted_for_each_client_and_go_on() {
    let Some(watch) = watch() else { return };
    for (ipv6, vlan) in [(false, false), (true, false), (false, true)] {
        for line in ["GET /b/k HTTP/1.1\r\n", "PUT /b/k HTTP/1.1\r\n", "DELETE /b/k HTTP/1.1\r\n"] {
            let bytes = packet(ipv6, vlan, 6, &request(line));
            assert_eq!(run(&watch, &bytes), (PASS, bytes));
        }
        run(&watch, &packet(ipv6, vlan, 6, &request("the middle of an upload")));
        run(&watch, &packet(ipv6, vlan, 6, &request("")));
    }
    let totals = watch.totals().unwrap();
    assert_eq!((totals.packets, totals.requests), (15, 9), "{totals:?}");
    assert_eq!((totals.get, totals.put, totals.other), (3, 3, 3), "{totals:?}");
    let clients = watch.clients().unwrap();
    let seen: Vec<_> = clients.iter().map(|it| (it.address.to_string(), it.requests, it.get)).collect();
    assert_eq!(seen, [("10.0.0.1".to_owned(), 6, 2), ("fd00::1".to_owned(), 3, 1)]);
}

#[test]
fn a_question_is_sent_back_with_proofs() {
    for (ipv6, vlan) in [(false, false), (true, false), (false, true), (true, true)] {
        let Some(mut watch) = watch() else { return };
        let (here, gone, never) = ([1; 16], [2; 16], [3; 16]);
        assert!(watch.insert(&here, b"proof 01").unwrap());
        assert!(watch.insert(&gone, b"proof 02").unwrap());
        watch.remove(&gone).unwrap();
        watch.remove(&never).unwrap();
        let asked = packet(ipv6, vlan, 17, &question(&[here, gone, never]));
        // The daemon may have what the map does not have yet.
        assert_eq!(run(&watch, &asked), (PASS, asked.clone()));
        watch.set_complete(true).unwrap();
        let (action, answer) = run(&watch, &asked);
        assert_eq!((action, answer.len()), (TX, asked.len()));
        let udp = answer.len() - 148;
        assert_eq!(answer[..6], asked[6..12], "back to the machine that asked");
        assert_eq!(
            answer[udp..udp + 4],
            [asked[udp + 2..udp + 4].to_vec(), asked[udp..udp + 2].to_vec()].concat()
        );
        assert_eq!(answer[udp + 8..udp + 20], [3, 1, 3, 0, 9, 8, 7, 6, 5, 4, 3, 2]);
        assert_eq!(answer[udp + 20..udp + 28], *b"proof 01");
        assert!(answer[udp + 28..].iter().all(|byte| *byte == 0), "no other name is here");
        let addresses = if ipv6 { udp - 32 } else { udp - 8 };
        assert_eq!(checked(&answer[addresses..udp], &answer[udp..]), 0xffff, "IPv6 {ipv6}");
        let totals = watch.totals().unwrap();
        assert_eq!((totals.questions, totals.passed, totals.answered), (2, 1, 1));
        assert_eq!((totals.names, totals.found), (3, 1));
    }
}

#[test]
fn what_is_no_question_goes_on() {
    let Some(mut watch) = watch() else { return };
    watch.set_complete(true).unwrap();
    let good = question(&[[1; 16]]);
    for (at, value) in [(3, 0), (5, 7), (8, 2), (9, 1), (10, 0), (10, 9)] {
        let mut bad = good.clone();
        bad[at] = value;
        let bytes = packet(false, false, 17, &bad);
        assert_eq!(run(&watch, &bytes), (PASS, bytes), "byte {at}");
    }
    // Cut anywhere. The kernel itself refuses packets without a whole link header.
    let whole = packet(false, false, 17, &good);
    for len in 14..whole.len() {
        assert_eq!(run(&watch, &whole[..len]).0, PASS, "cut at {len}");
    }
    let mut fragment = whole.clone();
    fragment[20] = 0x20;
    assert_eq!(run(&watch, &fragment).0, PASS);
    assert_eq!(run(&watch, &whole).0, TX);
}
