//! The mount options for a remote origin.

use std::time::Duration;

use api::error::{Failure, Result};
use fs::volume::Fsync;

/// What fsync(2) waits for, as an option says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsyncTo {
    /// The disk of this node.
    Local,
    /// The disk of another node of a shared volume, or the origin.
    Peer,
    /// The origin.
    Origin,
}

impl FsyncTo {
    const ALL: [(&str, FsyncTo); 3] =
        [("local", FsyncTo::Local), ("peer", FsyncTo::Peer), ("origin", FsyncTo::Origin)];
}

/// How a remote origin is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// What fsync(2) waits for. None: another node in a shared volume, else this node's disk.
    pub fsync: Option<FsyncTo>,
    /// How long a writer waits for space, and an fsync for the origin or another node.
    pub timeout: Duration,
    /// Bytes of this node's disk for what other nodes of a shared volume have synced.
    pub keep_max: u64,
    /// Bytes of this node's disk for blobs. None: a part of the free space.
    pub cache_size: Option<u64>,
    /// Bytes of the disk that stay free. None: a part of the disk.
    pub cache_floor: Option<u64>,
    /// The largest number of requests to the origin in a second.
    pub max_requests: Option<u32>,
    /// The largest number of bytes to and from the origin in a second.
    pub max_bandwidth: Option<u64>,
    /// Blobs uploaded at the same time.
    pub uploads: usize,
    /// Endpoints of buckets that get this machine's keys, although only a published tree names them.
    pub bucket_endpoints: Vec<String>,
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        RemoteOptions {
            fsync: None,
            timeout: Duration::from_secs(30),
            keep_max: KEEP_MAX,
            cache_size: None,
            cache_floor: None,
            max_requests: None,
            max_bandwidth: None,
            uploads: 8,
            bucket_endpoints: Vec::new(),
        }
    }
}

/// The words that `-o` accepts, each with a short explanation.
pub const KNOWN: &[(&str, &str)] = &[
    (
        "fsync=local|peer|origin",
        "what fsync waits for: this node's disk, that of another node or the origin, the origin (default local; in a shared volume peer)",
    ),
    (
        "timeout=SECONDS",
        "how long writes wait for room while the origin is behind, and fsync for it or another node (default 30)",
    ),
    (
        "keep_max=SIZE",
        "bytes of the node's disk for what other nodes of a shared volume have synced (default 2G; 0 keeps nothing)",
    ),
    ("cache_size=SIZE", "bytes of the node's disk for blobs, like 200G (default: most of what is free)"),
    ("cache_floor=SIZE", "bytes of the node's disk that stay free (default: 5 % of it, at least 1 GiB)"),
    ("max_requests=N", "requests to the origin in a second, at most"),
    ("max_bandwidth=SIZE", "bytes to and from the origin in a second, at most, like 50M"),
    ("uploads=N", "blobs uploaded at a time (default 8)"),
    (
        "bucket_endpoint=URL",
        "of the tree of a bucket: send this machine's keys to this endpoint, which the tree names; may be repeated (default: the origin's own, and those of the clouds)",
    ),
];

/// The default of `keep_max`.
const KEEP_MAX: u64 = 2 << 30;
/// The smallest cache that works: it holds a few blobs on their way in and out.
const CACHE_MIN: u64 = 64 << 20;

impl RemoteOptions {
    /// What fsync(2) waits for.
    pub fn fsync(&self, is_shared: bool) -> Fsync {
        match self.fsync.unwrap_or(if is_shared { FsyncTo::Peer } else { FsyncTo::Local }) {
            FsyncTo::Local => Fsync::Here,
            FsyncTo::Peer => Fsync::Peer(self.timeout),
            FsyncTo::Origin => Fsync::Origin(self.timeout),
        }
    }

    /// Sets one word after `-o`. False if it is none of these.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        let Some(text) = value else { return Ok(false) };
        let bad = |wanted: &str| {
            let what = format!("the mount option {name}={text} cannot be understood");
            Failure::usage(what).why(format!("its value is to be {wanted}"))
        };
        let size =
            |least: u64, wanted: &str| parse_size(text).filter(|n| *n >= least).ok_or_else(|| bad(wanted));
        match name {
            "fsync" => {
                let found = FsyncTo::ALL.iter().find(|(word, _)| *word == text);
                self.fsync = Some(found.ok_or_else(|| bad("local, peer or origin"))?.1);
            }
            "keep_max" => self.keep_max = size(0, "a size like 10G, or 0")?,
            "timeout" => {
                let seconds = text.parse::<f64>().ok().filter(|n| *n > 0.0 && *n <= 86_400.0);
                let seconds = seconds.ok_or_else(|| bad("a number of seconds above 0, at most 86400"))?;
                self.timeout = Duration::from_secs_f64(seconds);
            }
            "cache_size" => self.cache_size = Some(size(CACHE_MIN, "a size of at least 64M, like 200G")?),
            "cache_floor" => self.cache_floor = Some(size(0, "a size like 10G")?),
            "max_bandwidth" => {
                self.max_bandwidth = Some(size(64 << 10, "bytes in a second, at least 64K, like 50M")?);
            }
            "max_requests" => {
                let number = text.parse().ok().filter(|n| *n > 0);
                self.max_requests = Some(number.ok_or_else(|| bad("a number of requests above 0"))?);
            }
            "uploads" => {
                let number = text.parse().ok().filter(|n| (1..=64).contains(n));
                self.uploads = number.ok_or_else(|| bad("a number from 1 to 64"))?;
            }
            "bucket_endpoint" => {
                let is_url = ["http://", "https://"].iter().any(|begin| text.starts_with(begin));
                self.bucket_endpoints.push(is_url.then(|| text.to_owned()).ok_or_else(|| bad("a URL"))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The options as words after `-o`. Only those that differ from the default.
    pub fn to_words(&self) -> Vec<String> {
        let default = RemoteOptions::default();
        let mut words = Vec::new();
        let fsync = FsyncTo::ALL.iter().find(|(_, to)| self.fsync == Some(*to));
        words.extend(fsync.map(|(word, _)| format!("fsync={word}")));
        if self.keep_max != default.keep_max {
            words.push(format!("keep_max={}", self.keep_max));
        }
        if self.timeout != default.timeout {
            words.push(format!("timeout={}", self.timeout.as_secs_f64()));
        }
        words.extend(self.cache_size.map(|size| format!("cache_size={size}")));
        words.extend(self.cache_floor.map(|size| format!("cache_floor={size}")));
        words.extend(self.max_requests.map(|number| format!("max_requests={number}")));
        words.extend(self.max_bandwidth.map(|size| format!("max_bandwidth={size}")));
        if self.uploads != default.uploads {
            words.push(format!("uploads={}", self.uploads));
        }
        words.extend(self.bucket_endpoints.iter().map(|url| format!("bucket_endpoint={url}")));
        words
    }
}

/// Parses a number of bytes: `4096`, `512K`, `64M`, `200G`, `1.5T`. Units are powers of 1,024, and `iB` or
/// `B` may follow.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let unit = match text.bytes().last()? {
        b'K' | b'k' => 1_u64 << 10,
        b'M' | b'm' => 1 << 20,
        b'G' | b'g' => 1 << 30,
        b'T' | b't' => 1 << 40,
        _ => return text.parse().ok(),
    };
    let number = text[..text.len() - 1].parse::<f64>().ok()?;
    let bytes = number * unit as f64;
    (number >= 0.0 && bytes < 9e18).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(words: &[&str]) -> Result<RemoteOptions> {
        let mut options = RemoteOptions::default();
        for word in words {
            let (name, value) = word.split_once('=').unwrap();
            assert!(options.set(name, Some(value))?, "{word}");
        }
        Ok(options)
    }

    #[test]
    fn options_are_read_and_written_back() {
        let words = [
            "fsync=origin",
            "timeout=5",
            "keep_max=10G",
            "cache_size=200G",
            "cache_floor=512M",
            "max_requests=100",
            "max_bandwidth=50M",
            "uploads=3",
            "bucket_endpoint=https://one.example",
            "bucket_endpoint=http://127.0.0.1:9000",
        ];
        let options = set(&words).unwrap();
        assert_eq!((options.cache_size, options.max_bandwidth), (Some(200 << 30), Some(50 << 20)));
        let again = options.to_words();
        assert_eq!(set(&again.iter().map(String::as_str).collect::<Vec<_>>()).unwrap(), options);
        assert!(RemoteOptions::default().to_words().is_empty());
        for (word, to) in FsyncTo::ALL {
            assert_eq!(set(&[&format!("fsync={word}")]).unwrap().fsync, Some(to));
        }
        let (alone, shared) = (RemoteOptions::default().fsync(false), RemoteOptions::default().fsync(true));
        assert!(matches!((alone, shared), (Fsync::Here, Fsync::Peer(_))));
        assert!(!RemoteOptions::default().set("commit", Some("1")).unwrap());
        assert!(!RemoteOptions::default().set("ro", None).unwrap());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for word in [
            "fsync=never",
            "keep_max=-1",
            "timeout=0",
            "timeout=soon",
            "timeout=NaN",
            "cache_size=lots",
            "cache_size=1M",
            "cache_size=-5G",
            "max_requests=0",
            "max_bandwidth=1",
            "uploads=0",
            "uploads=1000",
            "bucket_endpoint=one.example",
        ] {
            assert_eq!(set(&[word]).unwrap_err().status, 2, "{word}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (text, size) in
            [("0", 0), ("4096", 4096), ("512K", 512 << 10), ("64MiB", 64 << 20), ("1.5g", 3 << 29)]
        {
            assert_eq!(parse_size(text), Some(size), "{text}");
        }
        for text in ["", "G", "x", "1X", "-1", "-1G", "1e30T", "NaNG"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
