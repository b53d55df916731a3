//! A program that is not a member of the fleet can ask for its members, and nothing else.

use super::*;
use crate::id::{Member, Seen, Zone};

const THERE: u16 = 1500;

/// An invented fleet.
pub(super) fn members(after: NodeId, most: usize) -> Roll {
    let seen = |n: u16| {
        let [a, b] = n.to_be_bytes();
        let mut node = [0; 16];
        (node[0], node[1]) = (a, b);
        let member = Member {
            node: NodeId(node),
            generation: 1,
            address: "10.0.0.1:7".parse().unwrap(),
            zone: Zone::default(),
            role: Role::Node,
            weight: 1,
            free: u32::from(n),
            load: 0,
        };
        Seen { member, is_own: n == 1, is_suspect: false }
    };
    let all: Vec<Seen> = (1..=THERE).map(seen).filter(|seen| seen.member.node > after).collect();
    Roll { more: all.len() > most, members: all.into_iter().take(most).collect() }
}

#[test]
fn all_pages_of_a_long_list_need_only_the_secret() {
    let (here, _there, _shelf, peer) = pair(|options| {
        // Two volumes. Only the secret is the same.
        options.identity.volume = if options.listen.is_some() { [7; 16] } else { [8; 16] };
    });
    let mut all = Vec::new();
    let mut after = NodeId([0; 16]);
    loop {
        let page = here.members(peer, after, TIME).wait().unwrap();
        let Some(last) = page.members.last() else { break };
        after = last.member.node;
        all.extend(page.members.iter().map(|seen| seen.member.free));
        if !page.more {
            break;
        }
    }
    assert_eq!(all, (1..=u32::from(THERE)).collect::<Vec<_>>());
    let foreign = Secret::from_text("a secret of other people").unwrap();
    let (stranger, _) = start(Options { secret: foreign, ..options() });
    let refused = stranger.members(peer, after, TIME).wait();
    assert!(matches!(&refused, Err(Fail::Stranger { why, .. }) if why.contains("secret")), "{refused:?}");
}

#[test]
fn a_connection_for_looking_can_do_nothing_else() {
    let (here, there, store, peer) = pair(|_| {});
    let id = store.keep(&noise(1000, 1));
    // No node of this program would do it: a request for bytes on a connection that is for the members only.
    let get = Get { blob: id, offset: 0, len: 100 };
    let refused = here.call(peer, Class::Look, Type::Get, &get.encode(), TIME, call::done).wait();
    assert!(matches!(refused, Err(Fail::Gone(_))), "{refused:?}");
    assert_eq!(there.counters().blob_bytes_out, 0);
    assert_eq!(read(&here, peer, &id, 0, 100).unwrap().len(), 100);
    // A node whose service fetches for no other node says so.
    let refused = here.fill(peer, &id, TIME).wait();
    assert_eq!(refused, Err(Fail::Unable("this node is no depot".to_owned())));
}
