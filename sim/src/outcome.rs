//! The figures by which a run is judged.

use serde_json::{Value, json};

/// The counters of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// GETs because a tracker gave a lease.
    pub told: u64,
    /// GETs because no other source was left.
    pub alone: u64,
    /// GETs while something slower was in flight.
    pub hedged: u64,
    /// Second requests to peers, as hedges.
    pub peer_hedges: u64,
    /// Blobs from nodes that had them.
    pub from_peers: u64,
    /// Blobs that were streamed from nodes that were fetching them.
    pub streamed: u64,
    /// Blobs from depots.
    pub from_depots: u64,
    /// GETs by depots.
    pub filled: u64,
    /// Blobs from the origin.
    pub from_origin: u64,
    /// Reads that found the blob on the node's own disk.
    pub local: u64,
    /// Reads.
    pub reads: u64,
    /// Plans that ended with an error. The reader tries again.
    pub errors: u64,
    /// Messages.
    pub messages: u64,
    /// Their bytes, with the headers of frames.
    pub bytes: u64,
    /// How long reads that missed took, in microseconds.
    pub took: Vec<u32>,
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// How many nodes.
    pub nodes: u32,
    /// How many depots beside them.
    pub depots: u32,
    /// How many blobs.
    pub blobs: u32,
    /// The seed.
    pub seed: u64,
    /// When the last live node had finished, in seconds. For a steady run, how long it was watched.
    pub seconds: f64,
    /// The same for nodes with a full link. A slow one is limited by its own.
    pub seconds_whole: f64,
    /// Nodes that crashed.
    pub crashed: u32,
    /// Live nodes that did not finish. Must be 0.
    pub unfinished: u32,
    /// Bytes of coordination sent per node and second: frames with their headers. Requests for bytes are not
    /// counted.
    pub coordination: f64,
    /// The same with the headers of TCP, IP and Ethernet, as if no two frames shared a packet.
    pub packets: f64,
    /// What the busiest node received, per second: its share as a tracker.
    pub coordination_most: f64,
    /// What the busiest node sent of blobs, in GB.
    pub egress_most: f64,
    /// What was counted.
    pub tally: Tally,
}

impl Outcome {
    /// A quantile of the times of missed reads, in milliseconds.
    pub fn quantile(&self, per_mille: usize) -> f64 {
        let mut took = self.tally.took.clone();
        if took.is_empty() {
            return 0.0;
        }
        let at = (took.len() * per_mille / 1_000).min(took.len() - 1);
        f64::from(*took.select_nth_unstable(at).1) / 1e3
    }

    /// All GETs, for any reason.
    fn all_gets(&self) -> f64 {
        (self.tally.told + self.tally.alone + self.tally.hedged + self.tally.filled) as f64
    }

    /// GETs per blob, including hedges.
    pub fn gets(&self) -> f64 {
        self.all_gets() / f64::from(self.blobs)
    }

    /// The fraction of bytes that need not come from the origin, compared with nodes on their own with the
    /// same disks. All blobs have one size.
    pub fn saved(&self) -> f64 {
        let missed = self.tally.reads.saturating_sub(self.tally.local);
        1.0 - self.all_gets() / missed.max(1) as f64
    }

    /// The heads of the table's columns.
    pub fn head() -> String {
        "  nodes  blobs  done s  (whole)  GET/blob  hedged  p50 ms   p99 ms  coord B/node/s  with TCP/IP  busiest B/s  most GB  crashed  errors  unfinished".into()
    }

    /// Its row.
    pub fn row(&self) -> String {
        format!(
            "{:>7} {:>6} {:>7.2} {:>8.2} {:>9.4} {:>7} {:>7.1} {:>8.1} {:>15.0} {:>12.0} {:>12.0} {:>8.1} {:>8} {:>7} {:>11}",
            self.nodes,
            self.blobs,
            self.seconds,
            self.seconds_whole,
            self.gets(),
            self.tally.hedged,
            self.quantile(500),
            self.quantile(990),
            self.coordination,
            self.packets,
            self.coordination_most,
            self.egress_most,
            self.crashed,
            self.tally.errors,
            self.unfinished,
        )
    }

    /// The heads of a steady run's columns.
    pub fn steady_head() -> String {
        "  nodes  depots  local %  peers %  streams %  depots %  origin %  GET/1000 reads  saved %  hedged  p50 ms   p99 ms  coord B/node/s  with TCP/IP  busiest B/s  most MB/s  errors".into()
    }

    /// A steady run's row.
    pub fn steady_row(&self) -> String {
        let reads = self.tally.reads.max(1) as f64;
        let part = |count: u64| 100.0 * count as f64 / reads;
        format!(
            "{:>7} {:>7} {:>8.1} {:>8.1} {:>10.1} {:>9.1} {:>9.1} {:>15.2} {:>8.1} {:>7} {:>7.1} {:>8.1} {:>15.0} {:>12.0} {:>12.0} {:>10.0} {:>7}",
            self.nodes,
            self.depots,
            part(self.tally.local),
            part(self.tally.from_peers),
            part(self.tally.streamed),
            part(self.tally.from_depots),
            part(self.tally.from_origin),
            self.all_gets() / reads * 1e3,
            100.0 * self.saved(),
            self.tally.hedged,
            self.quantile(500),
            self.quantile(990),
            self.coordination,
            self.packets,
            self.coordination_most,
            self.egress_most * 1e3 / self.seconds,
            self.tally.errors,
        )
    }

    /// All of it.
    pub fn json(&self) -> Value {
        let tally = &self.tally;
        json!({
            "nodes": self.nodes, "depots": self.depots, "blobs": self.blobs, "seed": self.seed, "seconds": self.seconds, "seconds_whole_links": self.seconds_whole,
            "crashed": self.crashed, "unfinished": self.unfinished, "gets_per_blob": self.gets(),
            "gets_told": tally.told, "gets_alone": tally.alone, "gets_hedged": tally.hedged,
            "peer_hedges": tally.peer_hedges, "p50_ms": self.quantile(500), "p99_ms": self.quantile(990),
            "coordination_bytes_per_node_s": self.coordination,
            "coordination_with_tcp_ip_bytes_per_node_s": self.packets,
            "saved": self.saved(), "coordination_busiest_bytes_s": self.coordination_most, "egress_most_gb": self.egress_most,
            "from_peers": tally.from_peers, "streamed": tally.streamed, "from_depots": tally.from_depots, "gets_of_depots": tally.filled, "from_origin": tally.from_origin,
            "local": tally.local, "reads": tally.reads, "errors": tally.errors, "messages": tally.messages,
        })
    }
}
