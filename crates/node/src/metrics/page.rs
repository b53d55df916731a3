//! The page, in the text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use api::metrics::METRICS;
use api::status::fleet::FleetStatus;
use api::status::remote_side::{RemoteStatus, UploadStatus};
use fuse::Session;
use fuse::watch::Histogram;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::mount::Mount;
use crate::opened::Node;

/// The bounds of the histograms' buckets: powers of two of nanoseconds, from 1 us to 17 s.
const POWERS: std::ops::RangeInclusive<u32> = 10..=34;

/// The text under construction.
struct Page(String);

impl Page {
    /// Begins a metric.
    fn metric(&mut self, name: &str) {
        if let Some((_, kind, help)) = METRICS.iter().find(|(known, ..)| *known == name) {
            let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
    }

    fn value(&mut self, name: &str, value: impl std::fmt::Display) {
        self.metric(name);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn labelled<'a>(&mut self, name: &str, label: &str, values: impl IntoIterator<Item = (&'a str, u64)>) {
        self.metric(name);
        for (of, value) in values {
            let _ = writeln!(self.0, "{name}{{{label}=\"{}\"}} {value}", of.to_lowercase());
        }
    }

    fn histograms(&mut self, name: &str, all: &[(&'static str, Histogram)]) {
        self.metric(name);
        for (op, hist) in all {
            let op = op.to_lowercase();
            for power in POWERS {
                let (end, below) = (1_u64 << power, hist.below(1 << power));
                let _ = writeln!(self.0, "{name}_bucket{{op=\"{op}\",le=\"{}\"}} {below}", end as f64 / 1e9);
            }
            let (count, sum) = (hist.count(), hist.sum() as f64 / 1e9);
            let _ = writeln!(self.0, "{name}_bucket{{op=\"{op}\",le=\"+Inf\"}} {count}");
            let _ = writeln!(self.0, "{name}_sum{{op=\"{op}\"}} {sum}\n{name}_count{{op=\"{op}\"}} {count}");
        }
    }
}

/// Renders the page.
pub fn render(node: &Mount, session: &Session) -> String {
    let mut page = Page(String::with_capacity(16 << 10));
    page.metric("covey_build_info");
    let _ = writeln!(page.0, "covey_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    page.value("covey_uptime_seconds", node.age().as_secs_f64());
    requests(&mut page, session);
    volume(&mut page, node);
    if let Some(remote_side) = node.as_node().and_then(Node::remote_side) {
        let status = remote_side.status();
        uploads(&mut page, &status.uploads);
        remote_origin(&mut page, &status);
    }
    if let Some(cache) = node.as_node().and_then(Node::tree_cache) {
        remote_origin(&mut page, &cache.status());
    }
    if let Some(status) = node.as_node().and_then(Node::fleet_status) {
        fleet(&mut page, &status);
    }
    process(&mut page);
    page.0
}

fn requests(page: &mut Page, session: &Session) {
    page.labelled("covey_fuse_requests_total", "op", session.counts());
    page.labelled("covey_fuse_request_errors_total", "op", session.failures());
    page.histograms("covey_fuse_request_duration_seconds", &session.watch().times());
    page.value("covey_fuse_requests_waiting", session.waiting());
    page.value("covey_fuse_replies_lost_total", session.replies_lost());
    let moved = session.moved();
    page.value("covey_fuse_read_bytes_total", moved.read_bytes);
    page.value("covey_fuse_written_bytes_total", moved.written_bytes);
}

fn volume(page: &mut Page, node: &Mount) {
    let Some(node) = node.as_node() else { return };
    let sources = node.shown().sources();
    let by = [("names", sources.names), ("cache", sources.open), ("origin", sources.blobs)];
    page.labelled("covey_reads_total", "source", by.map(|(source, reads)| (source, reads.count)));
    page.labelled("covey_read_bytes_total", "source", by.map(|(source, reads)| (source, reads.bytes)));
    // If the metadata cannot be read, its figures are left out. A missing figure is better than a wrong one.
    let Ok(stats) = node.shown().stats() else { return };
    for (name, value) in [
        ("covey_written_bytes_total", stats.written_bytes),
        ("covey_dedup_hits_total", stats.dedup_hits),
        ("covey_dedup_bytes_total", stats.dedup_bytes),
        ("covey_moved_bytes_total", stats.moved_bytes),
        ("covey_freed_bytes_total", stats.freed_bytes),
        ("covey_io_errors_total", stats.io_errors),
        ("covey_inodes", stats.inodes),
        ("covey_held_inodes", stats.held_inodes),
        ("covey_logical_bytes", stats.logical_bytes),
        ("covey_stored_bytes", stats.stored_bytes),
        ("covey_garbage_bytes", stats.garbage_bytes),
        ("covey_open_bytes", stats.open_bytes),
        ("covey_open_packs", stats.open_packs),
        ("covey_sealed_packs", stats.sealed_packs),
    ] {
        page.value(name, value);
    }
}

/// The metrics of a node of a fleet.
fn fleet(page: &mut Page, fleet: &FleetStatus) {
    page.value("covey_fleet_nodes", fleet.nodes);
    page.value("covey_fleet_depots", fleet.depots);
    page.labelled("covey_fleet_hits_total", "tier", fleet.tiers().map(|(name, tier)| (name, tier.hits)));
    page.labelled("covey_fleet_bytes_total", "tier", fleet.tiers().map(|(name, tier)| (name, tier.bytes)));
    let why = [("told", fleet.origin_told), ("hedge", fleet.origin_hedged), ("alone", fleet.origin_alone)];
    page.labelled("covey_fleet_origin_fetches_total", "why", why);
    page.value("covey_fleet_late_answers_total", fleet.asks_late);
    page.value("covey_fleet_second_leases_total", fleet.leases_again);
    page.value("covey_fleet_direct_total", fleet.direct);
    page.value("covey_fleet_failures_total", fleet.failed);
    page.value("covey_fleet_corrupt_total", fleet.corrupt);
    page.value("covey_fleet_sent_bytes_total", fleet.sent_bytes);
    page.value("covey_fleet_received_bytes_total", fleet.received_bytes);
}

/// The metrics of a volume with a remote origin.
fn uploads(page: &mut Page, uploads: &UploadStatus) {
    let failing = u64::from(uploads.trouble.is_some());
    for (name, value) in [
        ("covey_upload_pending_blobs", uploads.blobs),
        ("covey_upload_pending_bytes", uploads.bytes),
        ("covey_upload_oldest_seconds", uploads.oldest_seconds),
        ("covey_upload_failing", failing),
        ("covey_upload_unreadable_blobs", uploads.unreadable_blobs),
        ("covey_uploaded_blobs_total", uploads.uploaded_blobs),
        ("covey_uploaded_bytes_total", uploads.uploaded_bytes),
        ("covey_upload_failures_total", uploads.failed_attempts),
        ("covey_writers_waiting", uploads.writers_waiting),
        ("covey_writes_refused_total", uploads.writes_refused),
    ] {
        page.value(name, value);
    }
}

/// The metrics of a remote origin, for a volume or a published tree. Without one they are absent.
fn remote_origin(page: &mut Page, remote_side: &RemoteStatus) {
    let RemoteStatus { cache, requests, .. } = remote_side;
    for (name, value) in [
        ("covey_cache_size_bytes", cache.size_bytes),
        ("covey_cache_bytes", cache.bytes),
        ("covey_cache_blobs", cache.blobs),
        ("covey_cache_pinned_bytes", cache.pinned_bytes),
        ("covey_cache_fetched_bytes_total", cache.fetched_bytes),
        ("covey_cache_evicted_blobs_total", cache.evicted_blobs),
        ("covey_cache_evicted_bytes_total", cache.evicted_bytes),
        ("covey_cache_damaged_total", cache.damaged),
        ("covey_cache_off", u64::from(cache.off.is_some())),
        ("covey_origin_retries_total", requests.retries),
        ("covey_origin_errors_total", requests.errors),
        ("covey_origin_throttled_total", requests.throttled),
        ("covey_origin_refusals_total", requests.refusals),
        ("covey_origin_refusing", u64::from(requests.refused.is_some())),
        ("covey_origin_hedges_total", requests.hedges),
        ("covey_origin_in_flight", requests.in_flight),
        ("covey_origin_received_bytes_total", requests.received_bytes),
        ("covey_origin_sent_bytes_total", requests.sent_bytes),
    ] {
        page.value(name, value);
    }
    let reads = [
        ("memory", cache.memory_reads, cache.memory_bytes),
        ("disk", cache.disk_reads, cache.disk_bytes),
        ("origin", cache.far_reads, cache.far_bytes),
    ];
    page.labelled("covey_cache_reads_total", "source", reads.map(|(source, count, _)| (source, count)));
    page.labelled("covey_cache_read_bytes_total", "source", reads.map(|(source, _, bytes)| (source, bytes)));
    let fetches = [("blob", cache.fetched_blobs), ("part", cache.fetched_parts)];
    page.labelled("covey_cache_fetches_total", "kind", fetches);
    let kinds = requests.by_kind.iter().map(|(kind, count)| (kind.as_str(), *count));
    page.labelled("covey_origin_requests_total", "kind", kinds);
}

fn process(page: &mut Page) {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may hold any character. Numbers follow the last parenthesis, beginning with
    // the third field.
    let fields: Vec<u64> = text
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
        .unwrap_or_default();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
    let ticks = clock_ticks_per_second().max(1) as f64;
    page.value("process_cpu_seconds_total", (field(14) + field(15)) as f64 / ticks);
    page.value("process_resident_memory_bytes", field(24) * page_size() as u64);
    page.value("process_virtual_memory_bytes", field(23));
    page.value("process_threads", field(20));
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    page.value("process_open_fds", open);
    page.value("process_max_fds", getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX));
    let boot = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot = boot.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    if let Some(boot) = boot {
        page.value("process_start_time_seconds", boot + field(22) as f64 / ticks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_in_the_document_and_nothing_else_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/METRICS.md");
        let text = std::fs::read_to_string(path).unwrap();
        let rows: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("| `")).collect();
        for (name, kind, help) in METRICS {
            let row = rows.iter().find(|row| row.split(['`', '{']).next() == Some(name));
            // The document may add the values of a label.
            let meaning = format!("| {kind} | {}", help.trim_end_matches('.'));
            assert!(
                row.is_some_and(|row| row.contains(&meaning)),
                "docs/METRICS.md must have a row for {name} that contains: {meaning}"
            );
        }
        for row in rows {
            let name = row.split(['`', '{']).next().unwrap();
            assert!(METRICS.iter().any(|(known, ..)| *known == name), "docs/METRICS.md speaks of {name}");
        }
    }

    #[test]
    fn names_say_what_they_are() {
        for (name, kind, help) in METRICS {
            assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
            assert!(help.ends_with('.') && !help.contains('\n'), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        }
    }

    /// A person sees the help of one metric without the one before.
    #[test]
    fn each_help_text_is_understandable_alone() {
        for (name, _, help) in METRICS {
            let words = help.split(|letter: char| !letter.is_alphanumeric()).map(str::to_lowercase);
            let refers = |word: &String| ["their", "these", "both", "same", "such"].contains(&&**word);
            let found = words.into_iter().find(refers);
            assert_eq!(found, None, "the help of {name} refers to something outside it: {help}");
        }
    }

    #[test]
    fn a_histogram_grows_to_its_count() {
        let mut hist = Histogram::default();
        [500, 5_000, 5_000_000, 50_000_000_000].into_iter().for_each(|ns| hist.add(ns));
        let mut page = Page(String::new());
        page.histograms("covey_fuse_request_duration_seconds", &[("READ", hist)]);
        let counts: Vec<u64> = page
            .0
            .lines()
            .filter(|line| line.contains("_bucket"))
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(counts.is_sorted() && counts[0] == 1 && counts.ends_with(&[3, 4]), "{counts:?}");
        assert!(
            page.0.contains("le=\"0.000001024\"") && page.0.contains("_count{op=\"read\"} 4"),
            "{}",
            page.0
        );
        assert!(page.0.contains("_sum{op=\"read\"} 50.0050055\n"), "{}", page.0);
    }
}
