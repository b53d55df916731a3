//! Random work on a shared volume while its nodes, its database and its store fail.
//!
//! Three nodes have the volume mounted, each with relays of its own to the database. Six workers change and
//! read files, names and folders, and count under locks ([`work`]). Meanwhile something fails ([`faults`]),
//! and is healed. Then all must recover. What the workers saw is compared with what
//! [SEMANTICS](../../../docs/SEMANTICS.md) promises after such a fault ([`check`]): a node may lose only what
//! it may lose, and only if it says so. At the end the volume is checked, and compared on a new node.
//!
//! `make test-shared-faults` does this for half an hour. The seed of a trial chooses its faults; the times at
//! which they meet the work are those of the machine, so a seed repeats a fault, and not each history.

mod check;
mod faults;
mod fleet;
mod model;
mod trial;
mod work;

use std::time::{Duration, Instant};

use covey_tests::{Need, requires, say};

use self::faults::{Fault, Ground, Plan};
use self::trial::Trial;

/// How long the faults of one volume go on.
const VOLUME: Duration = Duration::from_secs(240);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map_or(default, |text| text.parse().unwrap())
}

/// Trials one after the other, each with the next seed, which says which kind of database it has.
fn trials(grounds: &[Ground]) {
    let grounds: Vec<Ground> = grounds.iter().copied().filter(|ground| ground.is_wanted()).collect();
    if grounds.is_empty() {
        return say(format_args!("the faults of COVEY_FAULTS_ONLY are those of another kind of database"));
    }
    let lasts = Duration::from_secs(setting("COVEY_FAULTS_SECONDS", 60));
    let (first, began) = (setting("COVEY_FAULTS_SEED", 1), Instant::now());
    let each = VOLUME.min(lasts / grounds.len() as u32);
    for seed in first.. {
        let end = Instant::now() + each.min(lasts.saturating_sub(began.elapsed()));
        let ground = grounds[seed as usize % grounds.len()];
        let Some(mut trial) = Trial::new(ground, seed) else { return };
        while Instant::now() < end {
            trial.round();
        }
        say(format_args!("seed {seed} of {ground:?}: sound, {}", trial.finish()));
        if began.elapsed() > lasts {
            return;
        }
    }
}

#[test]
#[ignore = "a minute, or COVEY_FAULTS_SECONDS: make test-shared-faults"]
fn faults_at_length_in_postgres() {
    requires!(Need::Covey);
    trials(&[Ground::Postgres, Ground::Standby, Ground::Dumps]);
}

#[test]
#[ignore = "a minute, or COVEY_FAULTS_SECONDS: make test-shared-faults"]
fn faults_at_length_in_etcd() {
    requires!(Need::Covey);
    trials(&[Ground::Etcd]);
}

/// Two rounds with faults that last for a moment.
fn short(ground: Ground, faults: [Fault; 2]) {
    let Some(mut trial) = Trial::new(ground, 7) else { return };
    for fault in faults {
        trial.round_of(Plan::of(fault, 1));
    }
    say(format_args!("{}", trial.finish()));
}

#[test]
#[ignore = "a first look at a change: cargo test --test shared -- --ignored a_volume_in_"]
fn a_volume_in_postgres_is_sound_after_faults() {
    requires!(Need::Covey);
    short(Ground::Postgres, [Fault::Kill(1), Fault::Hold(2)]);
}

#[test]
#[ignore = "a first look at a change: cargo test --test shared -- --ignored a_volume_in_"]
fn a_volume_in_etcd_is_sound_after_faults() {
    requires!(Need::Covey);
    short(Ground::Etcd, [Fault::Member(0), Fault::Kill(2)]);
}
