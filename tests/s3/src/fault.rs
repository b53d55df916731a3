//! The faults of networks and stores.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use http::{Method, StatusCode};

/// A fault of one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The answer is delayed by this.
    Wait(Duration),
    /// The answer is delayed by a lognormal time, like a store's first byte: by more than `median` for half
    /// of the answers; `sigma` is the standard deviation of the logarithm.
    WaitLike {
        /// The median.
        median: Duration,
        /// 0.6 is usual for a store.
        sigma: f64,
    },
    /// The server executes the request, and its answer is held back until the rules are cleared.
    Hold,
    /// The answer is delayed by this for each MiB of it.
    WaitPerMib(Duration),
    /// 503 with the code SlowDown.
    SlowDown,
    /// An error with this status and no code.
    Status(u16),
    /// The connection breaks after so many bytes of the answer's body.
    CutAnswer(usize),
    /// The connection breaks after so many bytes of the request's body.
    CutRequest(usize),
    /// The body ends after so many bytes, and Content-Length matches.
    Shorten(usize),
    /// One bit of the body is flipped.
    Flip,
    /// The same, from a cache between client and store: a request with `Cache-Control: no-cache` gets the
    /// right bytes.
    Stale,
    /// The body arrives at this many bytes per second.
    Trickle(usize),
    /// A fixed answer.
    Answer(Canned),
    /// The connection is closed without an answer.
    Drop,
    /// The server executes the request, and its answer is lost.
    Lose,
    /// There is never an answer.
    Hang,
    /// The same on connections that began before this moment.
    Dead(Instant),
    /// The answer has no Content-Length. Its body, if it has one, comes in chunks.
    Chunked,
    /// The answer's Date is wrong by so many seconds.
    Clock(i64),
}

/// A store's answers to users' mistakes.
#[derive(Clone, Debug, PartialEq)]
pub enum Canned {
    /// The session token has expired.
    ExpiredToken,
    /// The key is unknown.
    UnknownKey,
    /// The secret does not match the key. The answer repeats the request, with a session token in it, as
    /// Amazon's does.
    BadSignature,
    /// The key may not do this.
    AccessDenied,
    /// An error with this status and code.
    Error(u16, String),
    /// There is no such bucket.
    NoSuchBucket,
    /// The bucket is in this region. The status is 301, as from Amazon for a bucket elsewhere.
    WrongRegion(String),
    /// The clocks differ.
    ClockSkew,
    /// The store does not support the request.
    NotImplemented,
    /// The listing of these keys, each with the size in bytes and the ETag beside it.
    Listing(Vec<(String, u64, String)>),
    /// A web page for people.
    Page,
    /// The same from a proxy that sends no content type.
    BarePage,
}

impl Canned {
    /// Status, content type and body.
    pub(crate) fn answer(&self) -> (StatusCode, &'static str, String) {
        let refusal = |status, code: &str, more: &str| (status, "application/xml", error_body(code, more));
        let forbidden = StatusCode::FORBIDDEN;
        match self {
            Canned::ExpiredToken => refusal(StatusCode::BAD_REQUEST, "ExpiredToken", ""),
            Canned::UnknownKey => {
                refusal(forbidden, "InvalidAccessKeyId", "<AWSAccessKeyId>COVEYTESTKEY</AWSAccessKeyId>")
            }
            Canned::BadSignature => refusal(
                forbidden,
                "SignatureDoesNotMatch",
                "<CanonicalRequest>x-amz-security-token:covey/test+secret=0123456789</CanonicalRequest>",
            ),
            Canned::AccessDenied => refusal(forbidden, "AccessDenied", ""),
            Canned::Error(status, code) => refusal(StatusCode::from_u16(*status).unwrap(), code, ""),
            Canned::NoSuchBucket => refusal(StatusCode::NOT_FOUND, "NoSuchBucket", ""),
            Canned::WrongRegion(region) => refusal(
                StatusCode::MOVED_PERMANENTLY,
                "PermanentRedirect",
                &format!("<Endpoint>bucket.s3.{region}.amazonaws.com</Endpoint>"),
            ),
            Canned::ClockSkew => refusal(forbidden, "RequestTimeTooSkewed", ""),
            Canned::NotImplemented => refusal(StatusCode::NOT_IMPLEMENTED, "NotImplemented", ""),
            Canned::Listing(objects) => (StatusCode::OK, "application/xml", listing(objects)),
            Canned::BarePage => (
                StatusCode::OK,
                "application/octet-stream",
                "\n<!doctype HTML><html>Maintenance</html>".to_owned(),
            ),
            Canned::Page => (StatusCode::OK, "text/html", "<!DOCTYPE html><html>Welcome</html>".to_owned()),
        }
    }
}

/// A listing in S3's format.
fn listing(objects: &[(String, u64, String)]) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('\0', "&#x0;");
    let row = |(key, size, etag): &(String, u64, String)| {
        format!(
            "<Contents><Key>{}</Key><LastModified>2026-01-02T03:04:05.678Z</LastModified><ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size></Contents>",
            escaped(key)
        )
    };
    let rows: String = objects.iter().map(row).collect();
    format!(
        "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
    )
}

/// An error in S3's format.
pub(crate) fn error_body(code: &str, more: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>As a test wanted.</Message>{more}</Error>"
    )
}

/// A fault and its conditions.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    chance: f64,
    left: u64,
    only: Option<Method>,
    path: String,
}

impl Rule {
    /// For every request.
    pub fn new(fault: Fault) -> Rule {
        Rule { fault, chance: 1.0, left: u64::MAX, only: None, path: String::new() }
    }

    /// For this share of the requests, 0 to 1.
    pub fn chance(self, chance: f64) -> Rule {
        Rule { chance, ..self }
    }

    /// At most this many times.
    pub fn times(self, left: u64) -> Rule {
        Rule { left, ..self }
    }

    /// For requests of this method.
    pub fn only(self, method: Method) -> Rule {
        Rule { only: Some(method), ..self }
    }

    /// For GET requests: objects and listings.
    pub fn only_gets(self) -> Rule {
        self.only(Method::GET)
    }

    /// For requests whose path contains this.
    pub fn path(self, part: &str) -> Rule {
        Rule { path: part.to_owned(), ..self }
    }
}

struct State {
    rules: Vec<Rule>,
    lot: u64,
    happened: u64,
    held: u64,
}

/// The faults of a proxy, shared with the test that switches them.
pub struct Faults {
    state: Mutex<State>,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Faults {
        let lot = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Faults { state: Mutex::new(State { rules: Vec::new(), lot, happened: 0, held: 0 }) }
    }

    /// Adds a rule. Several rules may apply to one request.
    pub fn add(&self, rule: Rule) {
        self.state.lock().unwrap().rules.push(rule);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.state.lock().unwrap().rules.clear();
    }

    /// How many faults have happened.
    pub fn happened(&self) -> u64 {
        self.state.lock().unwrap().happened
    }

    /// How many answers were held back until now.
    pub fn held(&self) -> u64 {
        self.state.lock().unwrap().held
    }

    /// Notes that an answer is held back.
    pub(crate) fn hold(&self) {
        self.state.lock().unwrap().held += 1;
    }

    /// Whether answers that are held back stay so.
    pub(crate) fn holds(&self) -> bool {
        self.state.lock().unwrap().rules.iter().any(|rule| rule.fault == Fault::Hold)
    }

    /// The faults of the next request.
    pub(crate) fn meet(&self, method: &Method, path: &str) -> Vec<Fault> {
        let mut state = self.state.lock().unwrap();
        let State { rules, lot, happened, .. } = &mut *state;
        let mut met = Vec::new();
        for rule in rules.iter_mut() {
            let fits = rule.only.as_ref().is_none_or(|only| only == method) && path.contains(&rule.path);
            if !fits || rule.left == 0 || draw(lot) >= rule.chance {
                continue;
            }
            rule.left = rule.left.saturating_sub(u64::from(rule.left != u64::MAX));
            *happened += 1;
            met.push(rule.fault.clone());
        }
        met
    }

    /// A normally distributed random number, as the sum of twelve uniform ones: accurate to three standard
    /// deviations.
    pub(crate) fn normal(&self) -> f64 {
        let mut state = self.state.lock().unwrap();
        (0..12).map(|_| draw(&mut state.lot)).sum::<f64>() - 6.0
    }

    pub(crate) fn below(&self, most: usize) -> usize {
        (draw(&mut self.state.lock().unwrap().lot) * most as f64) as usize
    }
}

/// The next random number, at least 0 and below 1.
fn draw(lot: &mut u64) -> f64 {
    *lot ^= *lot << 13;
    *lot ^= *lot >> 7;
    *lot ^= *lot << 17;
    (*lot >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_lots_are_normal() {
        let faults = Faults::new(11);
        let lots: Vec<f64> = (0..4000).map(|_| faults.normal()).collect();
        let mean = lots.iter().sum::<f64>() / 4000.0;
        let deviation = (lots.iter().map(|lot| (lot - mean).powi(2)).sum::<f64>() / 4000.0).sqrt();
        assert!(mean.abs() < 0.1 && (deviation - 1.0).abs() < 0.1, "{mean} {deviation}");
    }

    #[test]
    fn rules_say_when() {
        let faults = Faults::new(7);
        faults.add(Rule::new(Fault::Drop).times(2).only(Method::PUT).path("blobs"));
        faults.add(Rule::new(Fault::Flip).chance(0.25));
        assert!(!faults.meet(&Method::GET, "/b/blobs/x").contains(&Fault::Drop));
        assert!(!faults.meet(&Method::PUT, "/b/records/x").contains(&Fault::Drop));
        let dropped =
            (0..5).filter(|_| faults.meet(&Method::PUT, "/b/blobs/x").contains(&Fault::Drop)).count();
        assert_eq!(dropped, 2);
        let flipped = (0..4000).filter(|_| !faults.meet(&Method::GET, "/").is_empty()).count();
        assert!((900..1100).contains(&flipped), "{flipped}");
        faults.clear();
        assert!(faults.meet(&Method::PUT, "/b/blobs/x").is_empty());
    }
}
