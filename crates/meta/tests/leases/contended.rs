//! Contended units: no node has a lease of them, and all behave as one.

use super::*;

/// Whatever a node wants to change is contended, and stays so.
const ALWAYS: Contention = Contention { turns: 0, quiet: LONG };
/// The same, and each node takes leases as soon as it may.
const RESTLESS: Contention = Contention { turns: 0, quiet: Duration::ZERO };

fn is_contended(world: &World, unit: Ino) -> bool {
    world.engine.memory.get(&Key::lease(unit)).unwrap().is_some_and(|row| row[1] == 3)
}

fn world(nodes: u32, rules: Contention) -> World {
    World::ruled(nodes, Far::default(), rules).format()
}

#[test]
fn nodes_that_take_turns_in_contended_units_leave_the_rows_of_one() {
    take_turns(ALWAYS);
}

#[test]
fn turns_rest() {
    take_turns(RESTLESS);
}

#[test]
fn names_in_contended_directories_are_made_once_and_seen_at_once() {
    make_once(world(3, ALWAYS));
}
#[test]
fn once_rest() {
    make_once(world(3, RESTLESS));
}

#[test]
fn moves_between_contended_units_lose_nothing() {
    move_between(world(3, ALWAYS));
}
#[test]
fn between_rest() {
    move_between(world(3, RESTLESS));
}

#[test]
fn a_directory_that_several_nodes_change_becomes_contended() {
    let world = World::formatted(4);
    world.engine.delay.store(1000, Ordering::SeqCst);
    let slowest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for node in 0..4u64 {
            let (world, slowest) = (&world, &slowest);
            scope.spawn(move || {
                let names = world.names(node as usize);
                for n in 0..400 {
                    let began = base::time::monotonic();
                    file(&names, &format!("{node} {n}"), 1000 + node * 1000 + n);
                    let took = began.elapsed().as_micros() as u64;
                    if n >= 200 {
                        slowest.fetch_max(took, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    println!("slowest {slowest:?}");
    assert!(is_contended(&world, Ino::ROOT));
    world.rows();
    check(&world.engine.memory);
}
