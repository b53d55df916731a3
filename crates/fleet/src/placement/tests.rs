use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use base::dice::Dice;

fn name(dice: &mut Dice) -> NodeId {
    let both = [dice.roll().to_be_bytes(), dice.roll().to_be_bytes()];
    NodeId(std::array::from_fn(|i| both[i / 8][i % 8]))
}

fn member(node: NodeId, weight: u16, role: Role) -> Member {
    let address = "127.0.0.1:1".parse().unwrap();
    Member { node, generation: 1, address, zone: Zone::default(), role, weight, free: 0, load: 0 }
}

fn members(seed: u64, weights: &[u16]) -> Vec<Member> {
    let mut dice = Dice::new(seed);
    weights.iter().map(|&weight| member(name(&mut dice), weight, Role::Node)).collect()
}

fn place(members: &[Member]) -> Placement {
    Placement::new(1, &Zone::default(), members)
}

fn shares(placement: &Placement, groups: u64) -> HashMap<NodeId, f64> {
    let mut shares = HashMap::new();
    for group in 0..groups {
        *shares.entry(placement.trackers(Group(group))[0]).or_insert(0.0) += 1.0 / groups as f64;
    }
    shares
}

#[test]
fn the_cost_is_the_logarithm() {
    for drawn in [0, 1, 2, 1 << 20, u64::MAX / 3, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
        let exact = 64.0 - (drawn as f64 + 1.0).log2();
        let fixed = cost(drawn) as f64 / (1u64 << FRACTION) as f64;
        assert!((exact - fixed).abs() < 1e-8, "{drawn}: {exact} {fixed}");
    }
    assert_eq!(cost(u64::MAX), 0);
}

/// Nodes of all versions must agree: these answers may never change.
#[test]
fn placement_is_the_same_on_every_machine() {
    let members: Vec<Member> =
        (1..=5).map(|i| member(NodeId([i; 16]), u16::from(i) * 10, Role::Node)).collect();
    let placement = place(&members);
    let firsts: Vec<u8> = (0..16).map(|group| placement.trackers(Group(group))[0].0[0]).collect();
    assert_eq!(firsts, FIRSTS);
}
const FIRSTS: [u8; 16] = [2, 4, 3, 3, 5, 5, 3, 3, 5, 4, 4, 5, 1, 4, 4, 3];

#[test]
fn equal_weights_share_equally_and_others_by_weight() {
    let shares_equal = shares(&place(&members(1, &[100; 20])), 40_000);
    assert_eq!(shares_equal.len(), 20);
    assert!(shares_equal.values().all(|share| (share * 20.0 - 1.0).abs() < 0.08), "{shares_equal:?}");
    let weights = [1, 2, 3, 4, 10, 100];
    let mixed = members(2, &weights);
    let got = shares(&place(&mixed), 60_000);
    for (member, weight) in mixed.iter().zip(weights) {
        let want = f64::from(weight) / 120.0;
        let share = got.get(&member.node).copied().unwrap_or(0.0);
        // Within 4 standard deviations.
        assert!((share - want).abs() < 4.0 * (want / 60_000.0).sqrt(), "{weight}: {share} instead of {want}");
    }
}

#[test]
fn zones_roles_and_weights_decide_who_takes_part() {
    let mut dice = Dice::new(3);
    let mut elsewhere = member(name(&mut dice), 1, Role::Depot);
    elsewhere.zone = Zone::new("far").unwrap();
    let idle = member(name(&mut dice), 0, Role::Depot);
    let depot = member(name(&mut dice), 1, Role::Depot);
    let node = member(name(&mut dice), 1, Role::Node);
    let placement = place(&[elsewhere, idle, depot.clone(), node.clone()]);
    let mut trackers = placement.trackers(Group(7));
    trackers.sort_unstable();
    let mut both = vec![depot.node, node.node];
    both.sort_unstable();
    assert_eq!(trackers, both);
    assert_eq!(placement.depots(&BlobId([9; 32]), 3), [depot.node]);
    assert_eq!(placement.len(), 2);
    assert!(Placement::default().trackers(Group(0)).is_empty() && Placement::default().is_empty());
}

#[test]
fn what_is_remembered_ends_with_the_epoch() {
    let all = members(4, &[1; 5]);
    let mut placed = Placed::new(place(&all));
    let before = placed.trackers(Group(5)).to_vec();
    assert_eq!(placed.trackers(Group(5)), before);
    let rest: Vec<Member> = all.into_iter().filter(|member| member.node != before[0]).collect();
    placed.update(Placement::new(2, &Zone::default(), &rest));
    assert_eq!(placed.trackers(Group(5))[..2], before[1..]);
    assert_eq!(placed.placement().epoch(), 2);
    for group in 0..REMEMBERED as u64 + 10 {
        placed.trackers(Group(group));
    }
    assert!(placed.groups.len() <= REMEMBERED);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn only_what_a_node_wins_or_had_won_moves(seed: u64, weights in prop::collection::vec(1u16..200, 2..20)) {
        let all = members(seed, &weights);
        let (last, rest) = all.split_last().unwrap();
        let (with, without) = (place(&all), place(rest));
        for group in (0..400).map(Group) {
            let mut there = with.trackers(group);
            there.retain(|node| *node != last.node);
            prop_assert_eq!(&there[..], &without.trackers(group)[..there.len()]);
        }
    }

    #[test]
    fn order_does_not_matter(seed: u64, weights in prop::collection::vec(0u16..5, 1..20)) {
        let all = members(seed, &weights);
        let mut other = all.clone();
        other.reverse();
        let (a, b) = (place(&all), place(&other));
        for group in (0..100).map(Group) {
            prop_assert_eq!(a.trackers(group), b.trackers(group));
        }
    }
}
