//! A trial: a new volume, rounds of work with faults, and at the end a check of all.
//!
//! After the faults of a round everything must recover, and all nodes must show the same state of each cell.
//! That is what the next round begins with: what is not in it, no node may show any more.

use std::fs::{self, File};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run, run_ok};
use covey_tests::{Rng, say};
use servers::{Cluster, Server};

use super::check::{judge, judge_counter};
use super::faults::{Ground, Plan};
use super::fleet::{Engine, Fleet, LIMIT, NODES, until};
use super::model::{Allowed, Cell, Content, Counter, Kind, Seen, State, Step};
use super::work::{Door, Worker, World, body, digits, read};

const WORKERS: usize = 6;
/// The number in histories of the look at all cells at the end of a round.
const LAST_LOOK: usize = 99;

pub struct Trial {
    seed: u64,
    ground: Ground,
    rng: Rng,
    // Before the mounts: it has their roots open.
    world: World,
    fleet: Fleet,
    rounds: u32,
    began: Instant,
}

/// Ends the workers, also when something panics.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What each worker owns. The first name is in a folder of its own or in the one of all, the second one in
/// the other.
fn cells(rng: &mut Rng) -> Vec<Cell> {
    let kinds = [
        (Kind::Written(300), 1),
        (Kind::Written(4000), 1),
        (Kind::Replaced(200), 1),
        (Kind::Replaced(90_000), 1),
        (Kind::Log, 1),
        (Kind::Link, 2),
        (Kind::Link, 1),
        (Kind::Folder, 2),
    ];
    let mut cells = Vec::new();
    for (owner, (kind, names)) in (0..WORKERS).flat_map(|owner| kinds.iter().map(move |kind| (owner, *kind)))
    {
        let number = cells.len();
        let mut folders = [format!("own{owner}"), "all".to_owned()];
        if rng.one_in(2) {
            folders.reverse();
        }
        let places = folders.iter().take(names).map(|folder| format!("{folder}/c{number}")).collect();
        let state = match kind {
            Kind::Link | Kind::Folder => vec![Content::Missing; names],
            Kind::Log => vec![Content::Holds(vec![])],
            _ => vec![Content::Holds(vec![0])],
        };
        cells.push(Cell { number, kind, places, owner, base: state, events: Mutex::default() });
    }
    cells
}

/// Starts the database. None: it is not installed.
fn engine(ground: Ground) -> Option<Engine> {
    if ground == Ground::Etcd {
        return Cluster::start().map(Engine::Etcd);
    }
    let server = Server::start()?;
    let standby = (ground == Ground::Standby).then(|| server.standby());
    Some(Engine::Postgres(server, standby))
}

impl Trial {
    /// A volume with all cells. None: its database is not installed.
    pub fn new(ground: Ground, seed: u64) -> Option<Trial> {
        let mut rng = Rng::new(seed);
        let fsync = *rng.pick(&["peer", "peer", "peer", "local", "origin"]);
        // What a dump refers to must be there when it is restored.
        let delay = if ground == Ground::Dumps { 300 } else { 1 };
        let mut fleet = Fleet::new(engine(ground)?, format!("fsync={fsync},gc_delay={delay}"));
        (0..NODES).for_each(|at| fleet.mount(at, None).unwrap());
        let root = fleet.mountpoint(0);
        let cells = cells(&mut rng);
        for folder in (0..WORKERS).map(|owner| format!("own{owner}")).chain(["all".to_owned()]) {
            fs::create_dir(root.join(&folder)).unwrap();
        }
        for cell in &cells {
            let bytes = match cell.kind {
                Kind::Link | Kind::Folder => continue,
                Kind::Log => Vec::new(),
                Kind::Replaced(len) | Kind::Written(len) => body(cell.number, 0, len),
            };
            fs::write(root.join(&cell.places[0]), bytes).unwrap();
        }
        let counters = ["all/count", "own0/count"].map(|path| {
            fs::write(root.join(path), digits(0)).unwrap();
            Counter { path: path.to_owned(), base: 0, steps: Mutex::default() }
        });
        File::open(root.join("all/count")).unwrap().sync_all().unwrap();
        let world = World {
            doors: (0..NODES).map(|_| Door::default()).collect(),
            cells,
            counters: counters.into(),
            stop: AtomicBool::new(false),
            done: Default::default(),
            failed: Default::default(),
            resolved: Default::default(),
            strange: Mutex::default(),
            running: AtomicUsize::new(0),
            slowest: Mutex::default(),
            doing: (0..WORKERS).map(|_| Mutex::new(None)).collect(),
        };
        let trial = Trial { seed, ground, rng, fleet, world, rounds: 0, began: Instant::now() };
        for at in 0..NODES {
            trial.world.doors[at].open(&trial.fleet.mountpoint(at)).unwrap();
        }
        Some(trial)
    }

    /// A round with faults that the seed chooses.
    pub fn round(&mut self) {
        let plan = Plan::choose(self.ground, self.rounds, &mut self.rng);
        self.round_of(plan);
    }

    pub fn round_of(&mut self, mut plan: Plan) {
        self.rounds += 1;
        self.fleet.mark();
        self.world.stop.store(false, Ordering::SeqCst);
        *self.world.slowest.lock().unwrap() = Default::default();
        plan.prepare(&mut self.fleet);
        let (zero, done) = (Instant::now(), self.world.done.load(Ordering::Relaxed));
        let worked = self.work(&plan);
        let settled = worked.and_then(|()| self.settle(&plan));
        let weak = self.fleet.weak();
        if let Err(what) = settled {
            self.is_violated(
                &format!("{what}\nround {}: {plan:?}, losses said by {weak:?}", self.rounds),
                zero,
            );
        }
        say(format_args!(
            "seed {} round {}: {:?}{} for {:.1} s, {} operations in {:.1} s, the slowest {:.1?}, losses said by {:?}",
            self.seed,
            self.rounds,
            plan.first,
            plan.second.map_or(String::new(), |second| format!(" and {second:?}")),
            plan.lasts.as_secs_f64(),
            self.world.done.load(Ordering::Relaxed) - done,
            zero.elapsed().as_secs_f64(),
            self.world.slowest.lock().unwrap(),
            (0..NODES).filter(|at| weak[*at]).collect::<Vec<_>>(),
        ));
    }

    /// The workers work while the faults happen, and a moment longer.
    fn work(&mut self, plan: &Plan) -> Result<(), String> {
        let Trial { world, fleet, rng, rounds, seed, .. } = self;
        let world: &World = world;
        world.running.store(WORKERS, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let _stops = Stops(&world.stop);
            for number in 0..WORKERS {
                let home = (number + *rounds as usize) % NODES;
                let rng = Rng::new(*seed << 20 | u64::from(*rounds) << 4 | number as u64);
                let sure = vec![None; world.cells.len()];
                let mut worker = Worker { world, number, home, rng, sure, next: *rounds << 20 };
                scope.spawn(move || worker.run());
            }
            let struck = plan.strike(fleet, world, rng).and_then(|()| fleet.recover());
            if struck.is_ok() {
                std::thread::sleep(Duration::from_millis(1000));
            }
            world.stop.store(true, Ordering::SeqCst);
            let ended = until("each operation ends", || world.running.load(Ordering::SeqCst) == 0);
            if let Err(what) = ended {
                let doing: Vec<String> =
                    world.doing.iter().map(|doing| format!("{:?}", doing.lock().unwrap())).collect();
                // So that they end.
                (0..NODES).for_each(|node| fleet.kill(node));
                return Err(format!("{what}: {}", doing.join("; ")));
            }
            struck
        })
    }

    /// Looks at all cells on all nodes, and judges the round.
    fn settle(&mut self, plan: &Plan) -> Result<(), String> {
        let mut states = Vec::new();
        for cell in &self.world.cells {
            let on = |node: usize| -> Result<State, String> { self.last_look(cell, node) };
            states.push((0..NODES).map(on).collect::<Result<Vec<State>, String>>()?);
        }
        let mut counts = Vec::new();
        for counter in &self.world.counters {
            let on = |node: usize| self.last_count(counter, node);
            counts.push((0..NODES).map(on).collect::<Result<Vec<u64>, String>>()?);
        }
        let allowed = Allowed { weak: self.fleet.weak(), all: plan.forgets() };
        for (cell, states) in self.world.cells.iter().zip(&states) {
            let told = |what: String| format!("{what}\n{}", cell.told(self.began));
            judge(cell, &allowed).map_err(told)?;
            if states.iter().any(|state| *state != states[0]) {
                return Err(told(format!("the nodes do not show the same: {states:?}")));
            }
            let mut by_name = states[0].iter().enumerate();
            let may_be = plan.forgets() && by_name.all(|(place, content)| cell.may_be(place, content));
            if cell.writers_of(&states[0]).is_none() && !may_be {
                return Err(told(format!("it was never {:?}", states[0])));
            }
        }
        for (counter, counts) in self.world.counters.iter().zip(&counts) {
            let told = |what: String| format!("{what}\n{}", counter.told(self.began));
            judge_counter(counter, &allowed).map_err(told)?;
            if counts.iter().any(|count| *count != counts[0]) {
                return Err(told(format!("the nodes do not show the same: {counts:?}")));
            }
        }
        let strange = std::mem::take(&mut *self.world.strange.lock().unwrap());
        let is_explained = |node: &Option<usize>| allowed.all || node.is_some_and(|node| allowed.weak[node]);
        if let Some((_, what)) = strange.iter().find(|(node, _)| !is_explained(node)) {
            return Err(what.clone());
        }
        self.world
            .cells
            .iter_mut()
            .zip(states)
            .for_each(|(cell, mut states)| cell.settle(states.swap_remove(0)));
        for (counter, counts) in self.world.counters.iter_mut().zip(counts) {
            counter.base = counts[0];
            counter.steps.get_mut().unwrap().clear();
        }
        Ok(())
    }

    fn last_look(&self, cell: &Cell, node: usize) -> Result<State, String> {
        let root = self.fleet.mountpoint(node);
        let look = |place: usize| {
            let end = Instant::now() + LIMIT;
            loop {
                let began = Instant::now();
                match read(&root, cell, place) {
                    Ok(seen) => {
                        cell.saw(began, LAST_LOOK, node, place, seen.clone());
                        return Ok(if let Seen::Is(content) = seen { content } else { Content::Missing });
                    }
                    Err(error) if Instant::now() > end => {
                        return Err(format!(
                            "{} on node {node}: {error}\n{}",
                            cell.places[place],
                            cell.told(self.began)
                        ));
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(200)),
                }
            }
        };
        (0..cell.places.len()).map(look).collect()
    }

    fn last_count(&self, counter: &Counter, node: usize) -> Result<u64, String> {
        let path = self.fleet.mountpoint(node).join(&counter.path);
        let (mut found, mut began) = (None, Instant::now());
        until(&format!("{} is read on node {node}", counter.path), || {
            began = Instant::now();
            found = fs::read_to_string(&path).ok().and_then(|text| text.parse().ok());
            found.is_some()
        })?;
        let step = Step { began, ended: Instant::now(), worker: LAST_LOOK, node, found, wrote: None };
        counter.steps.lock().unwrap().push(step);
        Ok(found.unwrap())
    }

    /// Unmounts all nodes, checks the volume, and compares it on a new node.
    pub fn finish(mut self) -> String {
        for at in 0..NODES {
            run_ok(covey().arg("flush").arg(self.fleet.mountpoint(at)), LIMIT);
            self.world.doors[at].shut();
        }
        (0..NODES).for_each(|at| self.fleet.unmount(at));
        let checked = run(covey().args(["fsck", "--json", self.fleet.address()]), LIMIT);
        if checked.code() != 0 || checked.json()["sound"] != true {
            self.is_violated(&format!("covey fsck: {checked:?}"), self.began);
        }
        self.fleet.mount_anew();
        for cell in &self.world.cells {
            let state = self.last_look(cell, NODES);
            if state.as_ref() != Ok(&cell.base) {
                self.is_violated(
                    &format!("a new node shows {state:?}\n{}", cell.told(self.began)),
                    self.began,
                );
            }
        }
        for counter in &self.world.counters {
            let count = self.last_count(counter, NODES);
            if count != Ok(counter.base) {
                self.is_violated(&format!("a new node shows {count:?}, not {}", counter.base), self.began);
            }
        }
        let count = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
        let World { done, failed, resolved, .. } = &self.world;
        format!(
            "{} rounds, {} operations, {} errors, {} states found after errors and on other nodes",
            self.rounds,
            count(done),
            count(failed),
            count(resolved)
        )
    }

    /// Says what is wrong and ends the test. The folder with all logs stays.
    fn is_violated(&self, what: &str, zero: Instant) -> ! {
        let round = zero.saturating_duration_since(self.began).as_secs_f64();
        // The rows are gone when the test has ended.
        let rows = covey().args(["fsck", "--json", self.fleet.address()]).output();
        let rows = rows.map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default();
        let text = format!(
            "seed {} of {:?}, round {} (from {round:.3} s on): {what}\n{}\ncovey fsck: {rows}",
            self.seed,
            self.ground,
            self.rounds,
            self.fleet.logs()
        );
        fs::write(self.fleet.folder.join("violation"), &text).ok();
        panic!("{text}");
    }
}
