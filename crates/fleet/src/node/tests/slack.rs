//! A link that has room: plans are told of it.

use fetch::Arriving;

use super::super::driver::Run;
use super::*;
use crate::plan::Event;

#[test]
fn a_plan_hears_that_half_of_the_line_is_idle() {
    let (store, ids) = Store::with(1, 1000);
    let node = Node::start(&store, Role::Node, None);
    let inner = &node.fleet.inner;
    let mut run = Run::new(inner, &ids[0], &Arriving::new(ids[0], Verify::Blake3));
    // Seconds of the link's own clock, with the bytes that arrived in each of them.
    let second = |n: u64, bytes: u64| inner.capacity.came(n * 1_000_000, bytes);
    second(1, 6_000_000);
    assert_eq!(run.look(), [], "the line is full");
    second(2, 1_000_000);
    assert_eq!(run.look(), [Event::Slack]);
    second(3, 5_000_000);
    assert_eq!(run.look(), [], "a link that is full again should cause no event");
}
