//! Rows of `covey status` that other commands show too.

use api::status::ClaimStatus;
use api::status::copies::CopiesStatus;
use api::status::fleet::{FleetStatus, LentStatus, TierStatus};
use api::status::remote_side::{RemoteStatus, UploadStatus};
use api::status::trash::TrashStatus;
use api::text::{bytes, count, span};

use crate::table::Pairs;

/// The number of leading characters of a name that people see.
const SHOWN: usize = 16;

/// The rows of `covey status` for a volume with a remote origin.
pub fn remote_side(pairs: &mut Pairs, remote_side: &RemoteStatus) {
    upload_rows(pairs, &remote_side.uploads);
    reading(pairs, remote_side);
}

/// The rows of a remote origin that is only read, as for a published tree.
pub fn reading(pairs: &mut Pairs, remote_side: &RemoteStatus) {
    cache(pairs, remote_side);
    let requests = &remote_side.requests;
    let named = requests.by_kind.iter().filter(|(_, n)| **n > 0);
    let kinds: Vec<String> = named.map(|(kind, n)| format!("{} {kind}", count(*n))).collect();
    let kinds = if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") };
    let (sent, received) = (bytes(requests.sent_bytes), bytes(requests.received_bytes));
    pairs.row("origin asked", format!("{kinds}; {sent} sent, {received} received"));
    if let Some(endpoint) = &remote_side.unsigned {
        pairs.row("without keys", format!("requests to {endpoint}, which only the tree names"));
    }
    if let Some(away) = &remote_side.away {
        let why = format!("not seen for {}, and looked for: {}", span(away.seconds as f64), away.why);
        pairs.row("origin away", why);
    }
    for refusal in &requests.refusing {
        let why = format!("for {} ({}): {}", span(refusal.seconds as f64), refusal.cause, refusal.why);
        pairs.row(&format!("{} refused", refusal.what), why);
    }
    if requests.errors > 0 {
        let throttled = match requests.throttled {
            0 => String::new(),
            n => format!(", {} of them because it was busy", count(n)),
        };
        pairs.row("origin errors", format!("{} requests failed{throttled}", count(requests.errors)));
    }
}

fn upload_rows(pairs: &mut Pairs, uploads: &UploadStatus) {
    let waits = match uploads.blobs {
        0 => "nothing: everything sealed is in the origin".to_owned(),
        n => format!(
            "{} blobs, {}, the oldest for {}; {} under way",
            count(n),
            bytes(uploads.bytes),
            span(uploads.oldest_seconds as f64),
            uploads.under_way
        ),
    };
    pairs.row("not uploaded", waits);
    match (&uploads.trouble, &uploads.oldest_failure) {
        (Some(trouble), _) => {
            pairs.row("uploads fail", format!("for {}: {}", span(trouble.seconds as f64), trouble.why));
        }
        (None, Some(why)) => drop(pairs.row("the oldest failed", why)),
        (None, None) => {}
    }
    if uploads.unreadable_blobs > 0 {
        let what = format!("{} blobs are damaged on this disk: see the log", count(uploads.unreadable_blobs));
        pairs.row("unreadable", what);
    }
    if uploads.writers_waiting > 0 {
        let what = format!("{} writers wait: what is not uploaded fills the disk", uploads.writers_waiting);
        pairs.row("writes wait", what);
    }
}

/// The rows of `covey cache status`.
pub fn cache(pairs: &mut Pairs, remote_side: &RemoteStatus) {
    let cache = &remote_side.cache;
    let kept =
        format!("{} in {} blobs, of {}", bytes(cache.bytes), count(cache.blobs), bytes(cache.size_bytes));
    let off = cache.off.as_ref().map_or_else(String::new, |why| format!("; off: {why}"));
    let floor = if cache.kept_out {
        format!("; keeps nothing: less than {} is free on its disk (cache_floor)", bytes(cache.floor_bytes))
    } else {
        String::new()
    };
    pairs.row("cache", kept + &off + &floor);
    let hits = cache.disk_reads + cache.memory_reads;
    let rate = match hits + cache.far_reads {
        0 => "nothing was read yet".to_owned(),
        all => format!("{:.1} % of {} reads", hits as f64 * 100.0 / all as f64, count(all)),
    };
    pairs.row("cache hits", format!("{rate}; {} fetched", bytes(cache.fetched_bytes)));
    if cache.evicted_blobs > 0 {
        pairs.row("let go", format!("{} blobs, {}", count(cache.evicted_blobs), bytes(cache.evicted_bytes)));
    }
    if cache.damaged > 0 {
        pairs.row("damaged here", format!("{} copies, fetched anew", count(cache.damaged)));
    }
}

/// The row of `covey status` for the trash.
pub fn trash(pairs: &mut Pairs, trash: &TrashStatus) {
    let kept = match trash.keep_seconds {
        Some(seconds) => format!("what is removed is kept for {}", span(seconds as f64)),
        None => "what is removed now is deleted at once".to_owned(),
    };
    pairs.row("trash", format!("{} files and folders, {}; {kept}", count(trash.files), bytes(trash.bytes)));
}

/// The rows of `covey status` for a node of a shared volume.
pub fn copies(pairs: &mut Pairs, copies: &CopiesStatus) {
    let full = match copies.refused {
        0 => String::new(),
        n => format!("; {} requests found no room", count(n)),
    };
    let (packs, max) = (count(copies.packs), bytes(copies.max_bytes));
    pairs.row("keeps for others", format!("{packs} packs, {} of {max}{full}", bytes(copies.bytes)));
    if let Some(keeper) = copies.keeper {
        pairs.row(
            "kept by",
            format!("node {keeper}: {} that the origin does not have", bytes(copies.sent_bytes)),
        );
    }
}

/// The rows of `covey status` for a node of a fleet.
pub fn fleet(pairs: &mut Pairs, fleet: &FleetStatus) {
    let depots = match fleet.depots {
        0 => String::new(),
        n => format!(", {} of them depots", count(n)),
    };
    pairs
        .row("fleet", format!("{} nodes{depots}; this one listens on {}", count(fleet.nodes), fleet.address));
    let tier = |(name, tier): &(&str, TierStatus)| {
        let (from, what) = match *name {
            "memory" | "disk" => (*name, "reads"),
            "part" => ("other nodes", "parts"),
            "depot_part" => ("depot", "parts"),
            "origin_part" => ("origin", "parts"),
            _ => (*name, "blobs"),
        };
        format!("{from} {} {what} ({})", count(tier.hits), bytes(tier.bytes))
    };
    let tiers = fleet.tiers();
    let used: Vec<String> = tiers.iter().filter(|(_, tier)| tier.hits > 0).map(tier).collect();
    pairs.row("bytes came from", if used.is_empty() { "nowhere yet".to_owned() } else { used.join(", ") });
    pairs.row("sent to others", bytes(fleet.sent_bytes));
    if fleet.failed > 0 || fleet.origin_hedged > 0 || fleet.origin_alone > 0 {
        pairs.row(
            "fleet troubles",
            format!(
                "{} fetches from others failed; asked the origin {} times because it was slow, {} times because nobody answered",
                count(fleet.failed),
                count(fleet.origin_hedged),
                count(fleet.origin_alone)
            ),
        );
    }
}

/// The status of a depot or a lender, as text.
pub fn lent(status: &LentStatus) -> String {
    let mut pairs = Pairs::new();
    pairs
        .row(&status.role, status.folder.display().to_string())
        .row("origin", &status.origin)
        .row("zone", &status.zone)
        .row("up for", span(status.uptime_seconds as f64));
    let asked = [
        (status.filled_blobs, "for nodes that read"),
        (status.warmed_blobs, "for covey warm"),
        (status.kept_blobs, "as copies of what it tracks"),
    ];
    let asked: Vec<String> =
        asked.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{} {why}", count(*n))).collect();
    pairs.row("blobs fetched", if asked.is_empty() { "none yet".to_owned() } else { asked.join(", ") });
    reading(&mut pairs, &status.remote_side);
    fleet(&mut pairs, &status.fleet);
    pairs.row("memory", format!("{} (peak {})", bytes(status.memory_bytes), bytes(status.memory_peak_bytes)));
    pairs.text()
}

/// The rows of a claim. There are none if the claim is in order.
pub fn claim(pairs: &mut Pairs, claim: &ClaimStatus) {
    let since = span(claim.seconds as f64);
    let why = claim.why.as_deref().unwrap_or_default();
    match &*claim.state {
        "lost" => {
            pairs.row("origin lost", format!("for {since}: {why}"));
            pairs.row(
                "read-only",
                "changes are refused; what was written is on this node and is not uploaded",
            );
        }
        "gone" => drop(pairs.row("origin gone", format!("for {since}: {why}"))),
        "waiting" => drop(pairs.row(
            "origin claim",
            "waits for the origin to answer; nothing is uploaded, deleted or published until then",
        )),
        _ => {}
    }
}

/// One line for each waiting upload, for `status -v`. Empty if none waits.
pub fn waiting(uploads: &UploadStatus) -> String {
    if uploads.waiting.is_empty() {
        return String::new();
    }
    let mut text = "not uploaded yet, oldest first:\n".to_owned();
    for waiting in &uploads.waiting {
        let name = waiting.blob.get(..SHOWN).unwrap_or(&waiting.blob);
        let stand = match (&waiting.failure, waiting.under_way) {
            (_, true) => "being sent".to_owned(),
            (Some(why), _) => format!("failed {} times: {why}", count(waiting.attempts.into())),
            (None, _) => "waits".to_owned(),
        };
        let (size, age) = (bytes(waiting.bytes), span(waiting.seconds as f64));
        text.push_str(&format!("  {name}  {size:>10}  for {age:>6}  {stand}\n"));
    }
    let more = uploads.blobs.saturating_sub(uploads.waiting.len() as u64);
    if more > 0 {
        text.push_str(&format!("  and {} more\n", count(more)));
    }
    text
}

#[cfg(test)]
mod tests {
    use api::status::remote_side::Waiting;

    use super::*;

    #[test]
    fn each_has_a_line_and_the_rest_is_counted() {
        let one = |failure: Option<&str>, under_way| Waiting {
            blob: "ab".repeat(32),
            bytes: 4 << 20,
            since: String::new(),
            seconds: 90,
            under_way,
            attempts: 2,
            failure: failure.map(str::to_owned),
        };
        let waiting = vec![one(None, true), one(Some("no answer"), false), one(None, false)];
        let shown = super::waiting(&UploadStatus { blobs: 7, waiting, ..UploadStatus::default() });
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 5, "{shown}");
        assert!(lines[1].contains("abababababababab  ") && lines[1].ends_with("being sent"), "{shown}");
        assert!(lines[2].ends_with("failed 2 times: no answer") && lines[4] == "  and 4 more", "{shown}");
        assert_eq!(super::waiting(&UploadStatus::default()), "");
    }
}
