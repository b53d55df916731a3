//! The same under TLS, and what TLS refuses.

use super::*;
use crate::tls::tests::Ca;

/// Runs a test with nodes that encrypt.
fn under_tls(test: fn()) {
    let tls = Ca::new().node();
    TLS.with_borrow_mut(|all| *all = Some(tls));
    test();
    TLS.with_borrow_mut(|all| *all = None);
}

macro_rules! again {
    ($($from:ident :: $name:ident,)*) => {
        $(#[test] fn $name() { under_tls($from::$name); })*
    };
}

use super::super::tests as plain;
use super::{fair, faults, flood, lanes, wrong};

again! {
    plain::ranges_and_whole_blobs_come_byte_for_byte,
    plain::questions_notes_and_lists_are_answered,
    plain::a_blob_passes_through_a_node_that_does_not_have_it_yet,
    plain::wrong_bytes_are_never_passed_on_and_the_sender_is_told,
    plain::a_file_that_is_cut_short_ends_the_connection_and_nothing_else,
    plain::a_stranger_is_refused_with_one_line_at_both_ends,
    plain::garbage_other_versions_and_slow_strangers_are_turned_away,
    plain::a_peer_that_says_nothing_costs_the_deadline_and_no_more,
    plain::what_is_given_up_leaves_nothing_behind,
    plain::a_connection_that_breaks_is_made_again_and_the_rest_comes,
    plain::two_hundred_nodes_and_a_greedy_one_are_all_served,
    faults::wrong_bytes_under_crcs_of_their_own_pass_only_where_the_sender_is_trusted,
    faults::a_node_that_dies_in_the_middle_of_a_body_leaves_what_was_verified,
    faults::regression_a_node_that_falls_silent_is_given_up_and_its_connection_closed,
    faults::connections_that_are_not_used_end_and_come_back,
    faults::what_others_wait_for_is_counted_in_mebibytes,
    faults::bodies_do_not_travel_on_a_control_connection,
    fair::regression_small_reads_do_not_wait_for_a_stream_of_whole_blobs,
    flood::a_client_that_reads_no_answers_costs_one_buffer,
    flood::regression_unread_lists_are_bounded_too,
    lanes::large_answers_to_what_was_asked_at_once_come_without_a_pause,
    wrong::a_request_that_makes_no_sense_ends_its_connection_with_a_line_and_no_other,
    wrong::a_connection_that_ends_within_a_request_just_ends,
    wrong::a_request_that_comes_in_pieces_is_answered,
    wrong::an_answer_that_makes_no_sense_ends_its_connection_and_no_other,
    wrong::bytes_of_another_place_end_their_request_only,
    wrong::a_connection_that_ends_within_an_answer_is_gone,
}

fn with(tls: Option<Tls>) -> Options {
    Options { tls, ..options() }
}

/// One node asks another. Returns the line that each of them reports.
fn lines(asks: Option<Tls>, answers: Option<Tls>) -> (String, String) {
    let (there, store) = start(with(answers));
    let peer = Peer { address: there.address().unwrap(), node: None };
    let (here, own) = start(with(asks));
    for _ in 0..3 {
        let Err(Fail::Stranger { .. }) = here.greet(peer, TIME).wait() else { panic!("it is accepted") };
    }
    until("a line at the other end", || !store.lines.lock().is_empty());
    let (here, there) = (own.lines.lock().clone(), store.lines.lock().clone());
    assert_eq!((here.len(), there.len()), (1, 1), "{here:?} {there:?}");
    assert!(!here[0].contains('\n') && !there[0].contains('\n'));
    (here[0].clone(), there[0].clone())
}

#[test]
fn a_node_without_tls_is_refused_with_the_reason_at_both_ends() {
    let ca = Ca::new();
    for (asks, answers) in [(None, Some(ca.node())), (Some(ca.node()), None)] {
        let (here, there) = lines(asks, answers);
        for line in [here, there] {
            assert!(line.contains("one of the two has TLS") && line.contains("--tls-cert"), "{line}");
        }
    }
}

#[test]
fn another_ca_is_refused_with_one_line_at_both_ends() {
    let (ours, other) = (Ca::new(), Ca::new());
    let (here, there) = lines(Some(other.node()), Some(ours.node()));
    assert!(here.contains("not from this fleet's CA: give both nodes the same --tls-ca"), "{here}");
    assert!(there.contains("does not take this node's certificate"), "{there}");
    // Its certificate is from another CA, but it accepts ours.
    let (here, there) = lines(Some(other.node_that_trusts(&ours)), Some(ours.node()));
    assert!(here.contains("does not take this node's certificate"), "{here}");
    assert!(there.contains("not from this fleet's CA"), "{there}");
}

#[test]
fn a_certificate_that_has_expired_is_refused_with_one_line_at_both_ends() {
    let ca = Ca::new();
    let (here, there) = lines(Some(ca.node()), Some(ca.expired()));
    assert!(here.contains("its certificate has expired"), "{here}");
    assert!(there.contains("this node's certificate has expired"), "{there}");
    let (here, there) = lines(Some(ca.expired()), Some(ca.node()));
    assert!(here.contains("this node's certificate has expired"), "{here}");
    assert!(there.contains("its certificate has expired"), "{there}");
}

#[test]
fn a_certificate_is_not_enough_without_the_secret() {
    let ca = Ca::new();
    let (there, _) = start(with(Some(ca.node())));
    let mut other = with(Some(ca.node()));
    other.secret = Secret::from_text("another secret of them").unwrap();
    let (here, _) = start(other);
    let peer = Peer { address: there.address().unwrap(), node: None };
    let Err(Fail::Stranger { why, .. }) = here.greet(peer, TIME).wait() else { panic!("it is accepted") };
    assert!(why.contains("secret"), "{why}");
}

/// A program between two nodes, with a certificate of the CA and without the secret, that relays the messages
/// of both.
#[test]
fn a_man_in_the_middle_with_a_certificate_cannot_relay_the_handshake() {
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    let ca = Ca::new();
    let (there, _) = start(with(Some(ca.node())));
    let (between, to) = (ca.node(), there.address().unwrap());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let act = move || {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let mut from = TlsAcceptor::from(between.server()).accept(stream).await.unwrap();
            let stream = tokio::net::TcpStream::connect(to).await.unwrap();
            let name = rustls::pki_types::ServerName::from(to.ip());
            let mut to = TlsConnector::from(between.client()).connect(name, stream).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
        });
    };
    drop(base::thread::spawn("between", act).unwrap());
    let (here, _) = start(with(Some(ca.node())));
    let Err(Fail::Stranger { why, .. }) = here.greet(Peer { address, node: None }, TIME).wait() else {
        panic!("the handshake was relayed")
    };
    assert!(why.contains("secret"), "{why}");
}

#[test]
fn nothing_of_a_blob_can_be_read_on_the_way() {
    let tls = Ca::new().node();
    for tls in [None, Some(tls)] {
        let (there, store) = start(with(tls.clone()));
        let bytes: Vec<u8> = b"these words are to be kept from others. ".repeat(30_000);
        let id = store.keep(&bytes);
        let (address, to) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), there.address().unwrap());
        let peer = Peer { address: address.local_addr().unwrap(), node: None };
        let (tell, told) = std::sync::mpsc::channel();
        let act = move || {
            let (mut from, _) = address.accept().unwrap();
            let mut to = std::net::TcpStream::connect(to).unwrap();
            let (mut back, mut answers) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let up = base::thread::spawn("up", move || std::io::copy(&mut from, &mut to).map(drop)).unwrap();
            let mut room = vec![0; 1 << 16];
            while let Ok(got @ 1..) = answers.read(&mut room) {
                let _ = tell.send(room[..got].to_vec());
                let _ = back.write_all(&room[..got]);
            }
            drop(up);
        };
        drop(base::thread::spawn("between", act).unwrap());
        let (here, _) = start(with(tls.clone()));
        let arriving = Arriving::new(id, Verify::Blake3);
        here.fetch_into(peer, &arriving, TIME).wait().unwrap();
        // Each part was recorded before it was relayed.
        let seen: Vec<u8> = told.try_iter().flatten().collect();
        assert!(seen.len() > bytes.len());
        let word = b"kept from others";
        assert_eq!(seen.windows(word.len()).any(|part| part == word), tls.is_none());
    }
}
