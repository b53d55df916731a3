//! What can go wrong between here and the store, as values; and each user mistake as one line that names it.
//!
//! The HTTP layer below (`wire`) turns every unsuccessful answer and every failed connection into a
//! [`Fault`]. It passes through the `object_store` crate inside that crate's errors, and [`Fault::of`] takes
//! it out again. So what is retried and reported depends on the answer itself, not on the wording of a
//! library.
//!
//! **No secret gets into a message.** Some stores repeat the request in their answers, including the session
//! token. So only the answer's code and the first words of its message are kept, and any of our keys is
//! removed from these.

#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use super::answers::Mistake;
use super::spec::{RemoteSpec, Store, host_of};

/// How often other bytes than the object's are taken for a fault of the line.
const DIFFERS: u32 = 4;

/// An unsuccessful answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    /// The store's error code, like `SlowDown`; empty if it gave none.
    pub(crate) code: String,
    /// The first words of its message, without keys.
    pub(crate) message: String,
    /// The right region, if the answer names it.
    pub(crate) region: Option<String>,
    /// The host that answered.
    pub(crate) host: String,
    /// The answer is an HTML page.
    pub(crate) page: bool,
    /// The request was for keys, not to the store.
    pub(crate) keys: bool,
    /// How long the store asks us to wait.
    pub(crate) wait: Option<Duration>,
}

impl Refused {
    /// Whether something before the store answered: the answer is an HTML page without a store's code.
    fn is_foreign(&self) -> bool {
        self.page && self.code.is_empty() && !self.keys
    }
}

/// Why no connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreached {
    Name,
    Refused,
    Tls,
    Other,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{} {}", .0.status, .0.code)]
    Refused(Box<Refused>),
    #[error("{what}")]
    Unreached { how: Unreached, host: String, what: String },
    /// The connection broke, or the answer is shorter than announced.
    #[error("the connection broke: {0}")]
    Cut(String),
    /// No complete answer within the time limit of one try.
    #[error("no answer in {} s", .0.as_secs())]
    Slow(Duration),
    /// The bytes that came are not those of the object.
    #[error("{0}")]
    Differs(String),
    /// A malformed answer.
    #[error("an answer that makes no sense: {0}")]
    Odd(String),
    /// No keys were found, or the environment names the place wrongly.
    #[error("{what}: {next}")]
    NoKeys { what: String, next: String },
    /// The program ends, and no further request is made.
    #[error("the work was given up: the program ends")]
    Ended,
}

impl Fault {
    /// No usable keys: what was found instead, and what to do.
    pub(crate) fn no_keys(what: impl Into<String>, next: impl Into<String>) -> Fault {
        Fault::NoKeys { what: what.into(), next: next.into() }
    }

    /// Returns the fault of unusable keys for an error of the `object_store` crate's builders, which says
    /// what is wrong with the environment.
    pub(crate) fn unfit(error: &object_store::Error) -> Fault {
        Fault::no_keys(first_words(&error.to_string(), 160), "correct that in the environment")
    }

    /// The fault inside an error of the `object_store` crate.
    pub(crate) fn of(error: &object_store::Error) -> Fault {
        let mut at: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(one) = at {
            if let Some(fault) = one.downcast_ref::<Fault>() {
                return fault.clone();
            }
            at = one.source();
        }
        // An answer inside an answer, for example when one request removes many keys.
        let status = match error {
            object_store::Error::NotFound { .. } => Some(404),
            object_store::Error::PermissionDenied { .. } => Some(403),
            object_store::Error::Unauthenticated { .. } => Some(401),
            // This kind of store lacks it; a retry changes nothing.
            object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
                Some(501)
            }
            _ => None,
        };
        if let Some(status) = status {
            return read_refusal(status, "", &Head::default(), "", str::to_owned);
        }
        let text = error.to_string();
        // One of the keys that a request was to remove. The crate has the store's code only in its message.
        if let Some((_, code)) = text.trim_end_matches(')').rsplit_once("(code: ") {
            let status = match code {
                "AccessDenied" => 403,
                "NoSuchKey" => 404,
                _ => 400,
            };
            let head = Head { code: Some(code.to_owned()), ..Head::default() };
            return read_refusal(status, "", &head, "", str::to_owned);
        }
        // The remaining errors are answers that the crate could not parse. Its messages may repeat the
        // request, so they are truncated.
        Fault::Odd(first_words(&text, 120))
    }

    /// The HTTP status, if there was an answer.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Fault::Refused(refused) => Some(refused.status),
            _ => None,
        }
    }

    pub(crate) fn code(&self) -> &str {
        match self {
            Fault::Refused(refused) => &refused.code,
            _ => "",
        }
    }

    /// Whether the object is missing. A missing bucket is something else.
    pub(crate) fn is_missing(&self) -> bool {
        let bucket = ["NoSuchBucket", "ContainerNotFound"].contains(&self.code());
        let elsewhere = matches!(self, Fault::Refused(refused) if refused.page || refused.keys);
        self.status() == Some(404) && !bucket && !elsewhere
    }

    /// Whether the object to be created exists already.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(self.status(), Some(304 | 412)) || ["BlobAlreadyExists"].contains(&self.code())
    }

    /// Whether it is about keys, which may have been replaced meanwhile.
    pub(crate) fn is_about_keys(&self) -> bool {
        matches!(mistake_of(self), Mistake::Expired | Mistake::AccessKey | Mistake::Secret)
    }

    pub(crate) fn is_throttle(&self) -> bool {
        matches!(self.status(), Some(420 | 429 | 503 | 509)) || is_throttle(self.code())
    }

    /// Whether the store answers and does not serve this request, for a reason that is none of the others.
    /// That is about its object.
    pub(crate) fn is_about_object(&self) -> bool {
        let answers = |status| (400..500).contains(&status) && ![404, 409, 412, 416].contains(&status);
        self.status().is_some_and(answers) && mistake_of(self) == Mistake::Other
    }

    /// Whether the answer does not say what it is about. The answer to a HEAD has no body with the reason,
    /// and from some stores no length.
    pub(crate) fn says_little(&self) -> bool {
        match self {
            Fault::Refused(refused) => matches!(refused.status, 400 | 401 | 403) && refused.code.is_empty(),
            Fault::Odd(_) => true,
            _ => false,
        }
    }

    /// Whether the same request may succeed a little later. `doubtful` tries so far ended in faults that are
    /// only sometimes temporary; those that are always temporary are not counted.
    ///
    /// An answer that no store gives comes from something before the store: a proxy's HTML page, or nonsense
    /// while a store starts. Such a fault is temporary like an outage, and is retried like one. (Opening an
    /// origin makes few tries, because the endpoint may be wrong there.)
    pub(crate) fn may_pass(&self, doubtful: u32) -> bool {
        match self {
            Fault::Cut(_) | Fault::Slow(_) | Fault::Odd(_) => true,
            Fault::Unreached { how, .. } => *how != Unreached::Tls,
            Fault::Differs(_) => doubtful < DIFFERS,
            Fault::NoKeys { .. } | Fault::Ended => false,
            Fault::Refused(refused) if refused.is_foreign() => true,
            Fault::Refused(refused) if passes(refused.status, &refused.code) => true,
            Fault::Refused(refused) => match refused.status {
                // A store that is full is so for longer, but some say it while they make room.
                409 | 507 => doubtful < 6,
                // The store received other bytes than were sent, or not all of them.
                400 => {
                    let transport = ["IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"];
                    transport.contains(&&*refused.code) && doubtful < 6
                }
                _ => false,
            },
        }
    }

    pub(crate) fn wait(&self) -> Option<Duration> {
        match self {
            Fault::Refused(refused) => refused.wait,
            _ => None,
        }
    }
}

/// Whether a code asks for fewer requests. Stores send it with several statuses.
fn is_throttle(code: &str) -> bool {
    let busy = [
        "SlowDown",
        "ServerBusy",
        "TooManyRequests",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "PriorRequestNotComplete",
        "TransactionInProgressException",
        "rateLimitExceeded",
        "userRateLimitExceeded",
    ];
    // Throttling, ThrottlingException, RequestThrottled, KMS.ThrottlingException and the like.
    code.contains("Throttl") || busy.contains(&code)
}

/// Whether an answer is about the moment, and not about the request.
fn passes(status: u16, code: &str) -> bool {
    let of_moment = [
        "RequestTimeout",
        "RequestTimeoutException",
        "OperationTimedOut",
        "InternalError",
        "InternalFailure",
        "ServiceUnavailable",
        "ServiceFailure",
        "backendError",
    ];
    if of_moment.contains(&code) || is_throttle(code) {
        return true;
    }
    match status {
        // Timeouts, too early, too many. What gateways and balancers say of a client that they gave up, and
        // of a connection that leads to another server.
        408 | 420 | 421 | 425 | 429 | 430 | 440 | 444 | 449 | 460 | 463 | 499 => true,
        // The store lacks this request.
        501 => !matches!(code, "" | "NotImplemented" | "NotSupported"),
        507 => false,
        // Others of a store, and those of what stands before one: 509, 520 to 530, 598 and so on.
        500.. => true,
        _ => false,
    }
}

/// What a message says besides the fault.
pub(crate) struct About<'a> {
    pub(crate) spec: &'a RemoteSpec,
    /// Where the keys came from: `AWS_ACCESS_KEY_ID of the environment`.
    pub(crate) keys: &'a str,
    /// What they must be allowed to do with objects.
    pub(crate) rights: &'a str,
}

/// The mistake that a fault shows.
pub(crate) fn mistake_of(fault: &Fault) -> Mistake {
    let refused = match fault {
        Fault::NoKeys { .. } => return Mistake::NoKeys,
        Fault::Unreached { how: Unreached::Tls, .. } => return Mistake::Tls,
        Fault::Unreached { host, .. } if host.starts_with("169.254.") => return Mistake::NoKeys,
        Fault::Unreached { .. } => return Mistake::Endpoint,
        Fault::Cut(_) | Fault::Slow(_) | Fault::Ended => return Mistake::Busy,
        Fault::Odd(_) => return Mistake::NotAStore,
        Fault::Differs(_) => return Mistake::Other,
        Fault::Refused(refused) => refused,
    };
    match &*refused.code {
        "InvalidAccessKeyId"
        | "NotSignedUp"
        | "InvalidClientTokenId"
        | "UnrecognizedClientException"
        | "AuthenticationFailed" => Mistake::AccessKey,
        "SignatureDoesNotMatch" => Mistake::Secret,
        "ExpiredToken"
        | "ExpiredTokenException"
        | "TokenRefreshRequired"
        | "InvalidToken"
        | "RequestExpired" => Mistake::Expired,
        "NoSuchBucket" | "ContainerNotFound" | "InvalidBucketName" => Mistake::Bucket,
        "PermanentRedirect"
        | "TemporaryRedirect"
        | "AuthorizationHeaderMalformed"
        | "IllegalLocationConstraintException" => Mistake::Region,
        "RequestTimeTooSkewed" => Mistake::Clock,
        "QuotaExceeded" | "XMinioStorageFull" | "AccountStorageFull" => Mistake::Full,
        _ if refused.is_foreign() => Mistake::NotAStore,
        code if passes(refused.status, code) => Mistake::Busy,
        _ if refused.keys => Mistake::NoKeys,
        _ if refused.page => Mistake::NotAStore,
        _ => match refused.status {
            301 | 302 | 307 | 308 => Mistake::Region,
            401 | 403 => Mistake::Denied,
            507 => Mistake::Full,
            _ => Mistake::Other,
        },
    }
}

/// A fault in words: what happened, and what to do about it if known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Explained {
    pub(crate) what: String,
    pub(crate) next: Option<String>,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.next {
            Some(next) => write!(f, ": {next}"),
            None => Ok(()),
        }
    }
}

impl From<String> for Explained {
    fn from(what: String) -> Explained {
        Explained { what, next: None }
    }
}

/// Names the mistake and what to do, in one line.
pub(crate) fn explain(fault: &Fault, about: &About) -> Explained {
    let spec = about.spec;
    let place = spec.endpoint.as_deref().unwrap_or(match spec.store {
        Store::S3 => "Amazon S3",
        Store::Gcs => "Google Cloud Storage",
        Store::Azure => "Azure",
    });
    let (bucket, keys) = (&spec.bucket, about.keys);
    let code = match fault {
        Fault::Refused(refused) if refused.code.is_empty() => format!("HTTP {}", refused.status),
        Fault::Refused(refused) => refused.code.clone(),
        _ => String::new(),
    };
    if let Fault::Differs(what) = fault {
        return what.clone().into();
    }
    let (what, next) = match mistake_of(fault) {
        Mistake::NoKeys => return no_keys(fault, keys),
        Mistake::AccessKey => {
            (format!("{place} does not know the access key ({code})"), format!("check {keys}"))
        }
        Mistake::Secret => (
            format!("the secret key does not belong to the access key ({code})"),
            format!("check the secret beside {keys}"),
        ),
        Mistake::Expired => (
            format!("the session token has expired or is not valid ({code})"),
            format!("renew it; the keys are from {keys}"),
        ),
        Mistake::Denied if fault.code() == "InvalidObjectState" => {
            (format!("the object is archived ({code})"), "restore it in the store first".to_owned())
        }
        Mistake::Denied => (
            format!("access denied ({code})"),
            format!("allow the keys from {keys} to {} objects of {bucket}", about.rights),
        ),
        Mistake::Bucket => (
            format!("there is no bucket {bucket} at {place} ({code})"),
            "make it first, or correct the URL".to_owned(),
        ),
        Mistake::Region => return wrong_region(fault, spec, &code),
        Mistake::Clock => (
            format!("this machine's clock differs too much from the store's ({code})"),
            "set it, for example with timedatectl set-ntp true".to_owned(),
        ),
        Mistake::Full => return format!("the store has no room left ({code})").into(),
        Mistake::NotAStore => (
            format!(
                "{} does not answer as an object store does ({})",
                endpoint_or(place),
                if code.is_empty() { fault.to_string() } else { code }
            ),
            "check the endpoint (a console for people often has another port)".to_owned(),
        ),
        Mistake::Tls => return tls(fault),
        Mistake::Endpoint => return unreached(fault),
        Mistake::Busy => return format!("{place} does not serve the request: {}", said(fault)).into(),
        _ => return format!("{place} refuses the request: {}", said(fault)).into(),
    };
    Explained { what, next: Some(next) }
}

fn no_keys(fault: &Fault, keys: &str) -> Explained {
    if let Fault::NoKeys { what, next } = fault {
        return Explained { what: what.clone(), next: Some(next.clone()) };
    }
    Explained {
        what: format!("no keys could be had from {keys} ({})", said(fault)),
        next: Some("set up that, or give keys by the environment".to_owned()),
    }
}

fn endpoint_or(place: &str) -> &str {
    if place.contains("://") { host_of(place) } else { place }
}

fn said(fault: &Fault) -> String {
    match fault {
        Fault::Refused(refused) => {
            let words = [&*format!("HTTP {}", refused.status), &refused.code, &refused.message];
            words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

fn wrong_region(fault: &Fault, spec: &RemoteSpec, code: &str) -> Explained {
    let right = match fault {
        Fault::Refused(refused) => refused.region.as_deref(),
        _ => None,
    };
    let used = spec.region.as_deref().unwrap_or("us-east-1");
    match right {
        Some(right) if right != used => Explained {
            what: format!("the bucket {} is in the region {right}, not in {used} ({code})", spec.bucket),
            next: Some(format!("use --region {right}")),
        },
        _ => Explained {
            what: format!("the bucket {} is not in the region {used} ({code})", spec.bucket),
            next: Some("name the right one with --region".to_owned()),
        },
    }
}

fn tls(fault: &Fault) -> Explained {
    let Fault::Unreached { host, what, .. } = fault else { return fault.to_string().into() };
    Explained {
        what: format!("there is no TLS connection to {host} ({what})"),
        next: Some(
            "name the store's CA in SSL_CERT_FILE, or write http:// if it does not speak TLS".to_owned(),
        ),
    }
}

fn unreached(fault: &Fault) -> Explained {
    let Fault::Unreached { how, host, what } = fault else { return fault.to_string().into() };
    let (what, next) = match how {
        Unreached::Name => {
            (format!("the name {host} has no address ({what})"), "check the endpoint and the network")
        }
        Unreached::Refused => {
            (format!("nothing listens at {host} ({what})"), "check the endpoint, or start the store")
        }
        _ => (format!("{host} cannot be reached ({what})"), "check the endpoint and the network"),
    };
    Explained { what, next: Some(next.to_owned()) }
}

/// Whether a text begins like an HTML page.
fn is_page(text: &[u8]) -> bool {
    let begin =
        |word: &str| text.get(..word.len()).is_some_and(|first| first.eq_ignore_ascii_case(word.as_bytes()));
    begin("<!DOCTYPE html") || begin("<html")
}

/// The fault, if the beginning of an object is an HTML page: some proxies send theirs without a content type.
/// None of our objects begins like that.
pub(crate) fn page_instead(first: &[u8]) -> Option<Fault> {
    let head = Head { html: true, ..Head::default() };
    is_page(first.trim_ascii_start()).then(|| read_refusal(200, "", &head, "", str::to_owned))
}

/// The fault in an error answer, from its body and headers. `scrub` removes keys.
pub(crate) fn read_refusal(
    status: u16,
    host: &str,
    head: &Head,
    body: &str,
    scrub: impl Fn(&str) -> String,
) -> Fault {
    let page = head.html || is_page(body.trim_start().as_bytes());
    let word = |text: &str| -> String {
        text.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(60).collect()
    };
    let code = match (&head.code, page) {
        (Some(code), _) => word(code),
        (None, true) => String::new(),
        (None, false) => word(tag(body, "Code").or_else(|| json(body, "reason")).unwrap_or("")),
    };
    let message = tag(body, "Message").or_else(|| json(body, "message")).unwrap_or("");
    let message = if page { String::new() } else { first_words(&scrub(message), 160) };
    let endpoint = tag(body, "Endpoint").and_then(region_of_endpoint);
    let region = head.region.as_deref().or_else(|| tag(body, "Region")).or(endpoint);
    let region = region.map(word).filter(|region| !region.is_empty());
    let host = host.to_owned();
    Fault::Refused(Box::new(Refused {
        status,
        code,
        message,
        region,
        host,
        page,
        keys: head.keys,
        wait: head.wait,
    }))
}

/// The relevant headers of an answer.
#[derive(Default)]
pub(crate) struct Head {
    pub(crate) region: Option<String>,
    /// The error code; Azure puts it here.
    pub(crate) code: Option<String>,
    pub(crate) html: bool,
    /// The request was for keys.
    pub(crate) keys: bool,
    pub(crate) wait: Option<Duration>,
}

/// The text of the first `<name>` in XML, which here is never nested in another of its name.
pub(super) fn tag<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let after = xml.split_once(&format!("<{name}>"))?.1;
    Some(after.split_once("</")?.0.trim())
}

pub(super) fn json<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let after = text.split_once(&format!("\"{name}\""))?.1.trim_start().strip_prefix(':')?;
    after.trim_start().strip_prefix('"')?.split('"').next()
}

/// `eu-west-1` of `bucket.s3.eu-west-1.amazonaws.com` or `bucket.s3-eu-west-1.amazonaws.com`.
fn region_of_endpoint(endpoint: &str) -> Option<&str> {
    let before = endpoint.strip_suffix(".amazonaws.com")?;
    let last = before.rsplit('.').next()?;
    let region = last.strip_prefix("s3-").unwrap_or(last);
    (region != "s3" && region.contains('-')).then_some(region)
}

/// The text as one line of at most `len` characters.
pub(crate) fn first_words(text: &str, len: usize) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(len) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line,
    }
}
