//! What fails: chosen by the seed, done, and healed again.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use covey_tests::Rng;
use covey_tests::program::{covey, run, run_ok};
use covey_tests::shared::Node;

use super::fleet::{Engine, Fleet, LIMIT, NODES, until};
use super::work::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The node is killed, and mounted again at the end.
    Kill(usize),
    /// The node is stopped.
    Stop(usize),
    /// The node's connections to the database end.
    Cut(usize),
    /// Nothing passes between the node and the database, and arrives at the end.
    Hold(usize),
    /// The node loses so many answers of the database.
    Lose(usize, u64),
    /// The other nodes do not reach this one.
    Apart(usize),
    /// The database is down.
    Down,
    /// The database is stopped.
    Frozen,
    /// One member of the cluster is killed.
    Member(usize),
    /// The store refuses all.
    Store,
    /// The primary is killed, and its synchronous standby promoted.
    Promote,
    /// The primary hangs, its standby is promoted, and then the old primary goes on.
    Hung,
    /// The primary is killed, and a standby promoted that lacks all of this round.
    Lag,
    /// A dump is restored beside the database, and mounted.
    Copy,
    /// A dump from the begin of the round is restored in place of the database.
    Restored,
}

/// What kind of database a trial has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    Postgres,
    /// PostgreSQL with a synchronous standby.
    Standby,
    /// PostgreSQL whose dumps are restored in its place.
    Dumps,
    Etcd,
}

impl Ground {
    /// The faults that only this kind of database has.
    fn own(self) -> &'static [Fault] {
        match self {
            Ground::Postgres => &[Fault::Copy],
            Ground::Standby => &[Fault::Promote, Fault::Lag, Fault::Hung],
            Ground::Dumps => &[Fault::Restored],
            Ground::Etcd => &[Fault::Member(0), Fault::Member(1), Fault::Member(2)],
        }
    }

    /// Whether a trial on it may have the faults that are wanted.
    pub fn is_wanted(self) -> bool {
        let is_of_another = |ground: Ground| ground != self && !wanted(ground.own()).is_empty();
        let others = [Ground::Postgres, Ground::Standby, Ground::Dumps, Ground::Etcd];
        !wanted(self.own()).is_empty() || !others.into_iter().any(is_of_another)
    }
}

/// Those of these faults whose names begin with COVEY_FAULTS_ONLY. Without it, all.
fn wanted(faults: &[Fault]) -> Vec<Fault> {
    let only = std::env::var("COVEY_FAULTS_ONLY").unwrap_or_default().to_lowercase();
    let is_it = |fault: &&Fault| format!("{fault:?}").to_lowercase().starts_with(&only);
    faults.iter().filter(is_it).copied().collect()
}

/// The faults of a round. The second one begins while the first one lasts.
#[derive(Debug)]
pub struct Plan {
    pub first: Fault,
    pub second: Option<Fault>,
    pub lasts: Duration,
    made: Option<PathBuf>,
}

impl Plan {
    pub fn of(first: Fault, seconds: u64) -> Plan {
        Plan { first, second: None, lasts: Duration::from_secs(seconds), made: None }
    }

    pub fn choose(ground: Ground, round: u32, rng: &mut Rng) -> Plan {
        let node = rng.below(NODES as u64) as usize;
        let other = (node + 1 + rng.below(NODES as u64 - 1) as usize) % NODES;
        use Fault::*;
        let all = [
            Kill(node),
            Kill(node),
            Kill(node),
            Stop(node),
            Stop(node),
            Cut(node),
            Hold(node),
            Hold(node),
            Lose(node, 1 + rng.below(8)),
            Apart(node),
            Down,
            Down,
            Frozen,
            Store,
        ];
        let (all, own) = (wanted(&all), wanted(ground.own()));
        assert!(all.len() + own.len() > 0, "no fault has a name that begins with COVEY_FAULTS_ONLY");
        // Each third round is one of this kind of database.
        let first = match round % 3 {
            1 if !own.is_empty() => own[round as usize / 3 % own.len()],
            _ if all.is_empty() => *rng.pick(&own),
            _ => *rng.pick(&all),
        };
        // Longer than a session or shorter.
        let lasts = Duration::from_millis(if rng.one_in(3) {
            rng.range(17_000, 22_000)
        } else {
            rng.range(50, 6000)
        });
        let alone = matches!(first, Lag | Copy | Restored | Promote | Hung);
        let lasts = if alone { lasts.min(Duration::from_secs(5)) } else { lasts };
        let beside =
            [Kill(other), Stop(other), Lose(other, 1 + rng.below(4)), Apart(other), Cut(other), Hold(other)];
        let second = (!alone && rng.one_in(3)).then(|| *rng.pick(&beside));
        Plan { first, second, lasts, made: None }
    }

    /// Whether the database may lack what was acknowledged in this round.
    pub fn forgets(&self) -> bool {
        matches!(self.first, Fault::Lag | Fault::Restored)
    }

    /// Before the workers begin.
    pub fn prepare(&mut self, fleet: &mut Fleet) {
        match self.first {
            Fault::Lag => {
                let (primary, standby) = fleet.servers();
                primary.sql("alter system reset synchronous_standby_names; select pg_reload_conf()");
                standby.as_ref().unwrap().down();
            }
            Fault::Restored => {
                // A dump lacks bytes that are on nodes only.
                for node in 0..NODES {
                    run_ok(covey().arg("flush").arg(fleet.mountpoint(node)), LIMIT);
                }
                self.made = Some(fleet.servers().0.dump("covey"));
            }
            _ => {}
        }
    }

    /// Does it all, and heals it.
    pub fn strike(&self, fleet: &mut Fleet, world: &World, rng: &mut Rng) -> Result<(), String> {
        std::thread::sleep(Duration::from_millis(rng.range(500, 2500)));
        self.begin(self.first, fleet, world)?;
        let early = self.lasts.mul_f64(rng.below(100) as f64 / 100.0);
        std::thread::sleep(early);
        self.second.map_or(Ok(()), |second| self.begin(second, fleet, world))?;
        std::thread::sleep(self.lasts - early);
        heal(self.first, fleet, world)?;
        self.second.map_or(Ok(()), |second| heal(second, fleet, world))
    }

    fn begin(&self, fault: Fault, fleet: &mut Fleet, world: &World) -> Result<(), String> {
        match fault {
            Fault::Kill(node) => fleet.kill(node),
            Fault::Stop(node) => {
                world.doors[node].is_stopped.store(true, Ordering::SeqCst);
                fleet.node(node).freeze(true);
            }
            Fault::Cut(node) => fleet.members[node].relays.iter().for_each(|relay| relay.cut()),
            Fault::Hold(node) => fleet.members[node].relays.iter().for_each(|relay| relay.hold()),
            Fault::Lose(node, count) => {
                let relays = &fleet.members[node].relays;
                relays.iter().for_each(|relay| relay.lose.store(count, Ordering::SeqCst));
            }
            Fault::Apart(node) => fleet.members[node].peers.cut(),
            Fault::Down => match &fleet.engine {
                Engine::Postgres(primary, _) => primary.down(),
                Engine::Etcd(cluster) => (0..3).for_each(|at| cluster.kill(at)),
            },
            Fault::Frozen => freeze(fleet, true),
            Fault::Member(at) => fleet.cluster().kill(at),
            Fault::Store => fs::rename(fleet.origin(), fleet.folder.join("away")).unwrap(),
            Fault::Promote | Fault::Lag => fleet.servers().0.kill(),
            Fault::Hung => fleet.servers().0.freeze(true),
            Fault::Copy => return copy(fleet),
            Fault::Restored => {
                let primary = fleet.servers().0;
                primary.sql_in("postgres", "drop database covey with (force)");
                primary.restore("covey", self.made.as_ref().unwrap());
            }
        }
        Ok(())
    }
}

fn freeze(fleet: &Fleet, on: bool) {
    match &fleet.engine {
        Engine::Postgres(primary, _) => primary.freeze(on),
        Engine::Etcd(cluster) => (0..3).for_each(|at| cluster.freeze(at, on)),
    }
}

fn heal(fault: Fault, fleet: &mut Fleet, world: &World) -> Result<(), String> {
    match fault {
        Fault::Kill(node) => fleet.mount(node, Some(world))?,
        Fault::Stop(node) => {
            fleet.node(node).freeze(false);
            world.doors[node].is_stopped.store(false, Ordering::SeqCst);
        }
        Fault::Cut(node) | Fault::Hold(node) => {
            fleet.members[node].relays.iter().for_each(|relay| relay.open())
        }
        Fault::Lose(node, _) => {
            fleet.members[node].relays.iter().for_each(|relay| relay.lose.store(0, Ordering::SeqCst));
        }
        Fault::Apart(node) => fleet.members[node].peers.open(),
        Fault::Down => match &fleet.engine {
            Engine::Postgres(primary, _) => primary.up(),
            Engine::Etcd(cluster) => (0..3).for_each(|at| cluster.up(at)),
        },
        Fault::Frozen => freeze(fleet, false),
        Fault::Member(at) => fleet.cluster().up(at),
        Fault::Store => fs::rename(fleet.folder.join("away"), fleet.origin()).unwrap(),
        Fault::Promote | Fault::Hung | Fault::Lag => promote(fault, fleet),
        Fault::Copy => {}
        Fault::Restored => {
            (0..NODES).for_each(|node| fleet.kill(node));
            let address = fleet.address().to_owned();
            until("the restored database is said to be the volume", || {
                run(covey().args(["origin", "claim", &address]), LIMIT).status.success()
            })?;
            (0..NODES).try_for_each(|node| fleet.mount(node, Some(world)))?;
        }
    }
    Ok(())
}

/// The standby takes the place of the primary, and gets a standby of its own.
fn promote(fault: Fault, fleet: &mut Fleet) {
    let (primary, standby) = fleet.servers();
    let new = standby.take().unwrap();
    if fault == Fault::Lag {
        new.up();
    }
    new.promote();
    let old = std::mem::replace(primary, new);
    if fault == Fault::Hung {
        old.freeze(false);
        std::thread::sleep(Duration::from_secs(1));
    }
    drop(old);
    *standby = Some(primary.standby());
    fleet.primary = 1 - fleet.primary;
    fleet.lead();
}

/// A dump is restored beside the database. A mount of it changes nothing and deletes nothing.
fn copy(fleet: &mut Fleet) -> Result<(), String> {
    let primary = &fleet.servers().0;
    let name = format!("copy{}", primary.name().replace('-', "_"));
    let dump = primary.dump("covey");
    primary.restore(&name, &dump);
    let address = fleet.address().replace("/covey?", &format!("/{name}?"));
    let mut node = Node::try_with(&fleet.folder, &address, &name, &["-o", "gc_delay=1"])?;
    let log = node.log();
    if !log.contains("mounted for reading only") || !log.contains("covey origin claim") {
        return Err(format!("a copy of the database is not mounted for reading only: {log}"));
    }
    let written = fs::write(node.mountpoint.join("new"), "new").map_err(|error| error.raw_os_error());
    if written != Err(Some(libc::EROFS)) {
        return Err(format!("a copy of the database takes changes: {written:?}"));
    }
    let _ = run(covey().arg("gc").arg(&node.mountpoint), LIMIT);
    node.unmount();
    fleet.servers().0.sql_in("postgres", &format!("drop database {name} with (force)"));
    Ok(())
}
