//! Keys of roles, which a service gives.

use std::sync::Arc;

use super::little::{Answer, Little, Request};
use super::*;

/// A service of keys: instance metadata, a container's credentials, and a token service. The keys are the
/// right ones, and their token names how often they were changed.
struct Service {
    little: Little,
    token: Arc<AtomicU64>,
}

impl Service {
    fn start() -> Service {
        let token = Arc::new(AtomicU64::new(1));
        let now = Arc::clone(&token);
        let little = Little::start(move |request| answer(request, now.load(Ordering::SeqCst)));
        Service { little, token }
    }

    /// How often keys were asked for.
    fn given(&self) -> usize {
        let gives = |line: &&String| ["/role1", "/creds", "AssumeRole"].iter().any(|end| line.contains(end));
        self.little.asked().iter().filter(gives).count()
    }
}

fn answer(Request { method, target, headers }: &Request, token: u64) -> Answer {
    let end = "2100-01-01T00:00:00Z";
    let is_known = headers.get("authorization").is_some_and(|known| known == "OF-A-FILE");
    match &**method {
        // 0: the service fails.
        _ if token == 0 => Answer::of(500, ""),
        _ if target.ends_with("/creds") && !is_known => Answer::of(401, ""),
        "PUT" => Answer::of(200, "TOKEN"),
        "POST" => Answer::of(
            200,
            format!(
                "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
                 <SessionToken>of-a-role-{token}</SessionToken><SecretAccessKey>{SECRET}</SecretAccessKey>\
                 <Expiration>{end}</Expiration><AccessKeyId>{KEY}</AccessKeyId></Credentials>\
                 </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
            ),
        ),
        _ if target.ends_with("/security-credentials/") => Answer::of(200, "role1"),
        _ if target.ends_with("/role1") || target.ends_with("/creds") => Answer::of(
            200,
            format!(
                "{{\"Code\":\"Success\",\"AccessKeyId\":\"{KEY}\",\"SecretAccessKey\":\"{SECRET}\",\
                 \"Token\":\"of-a-role-{token}\",\"Expiration\":\"{end}\"}}"
            ),
        ),
        _ => Answer::of(404, ""),
    }
}

/// The environments of the three kinds of roles.
fn roles(service: &Service, folder: &std::path::Path) -> Vec<(&'static str, Environment)> {
    let file = folder.join("token");
    fs::write(&file, "OF-A-FILE\n").unwrap();
    let (file, at) = (file.to_str().unwrap(), service.little.endpoint());
    let creds = format!("{at}/creds");
    let instance = [("AWS_METADATA_ENDPOINT", &*at)];
    let web = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/x"),
        ("AWS_ENDPOINT_URL_STS", &*at),
    ];
    let container =
        [("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*creds), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file)];
    vec![
        ("instance", Environment::of(instance)),
        ("web identity", Environment::of(web)),
        ("container", Environment::of(container)),
    ]
}

/// Keys of a role that the store called expired before their announced end were used until that end.
#[test]
fn regression_a_role_is_asked_for_new_keys_when_the_store_wants_them() {
    let (service, folder) = (Service::start(), tempfile::tempdir().unwrap());
    for (seed, (kind, environment)) in roles(&service, folder.path()).into_iter().enumerate() {
        let (proxy, made, id, bytes) = behind(310 + seed as u64, short());
        service.token.store(1, Ordering::SeqCst);
        let remote = Remote::open(made.spec(), &environment, short(), Access::ReadWrite).unwrap();
        let given = service.given();
        assert!(remote.fetch(&id).unwrap().1 == bytes);
        assert_eq!(service.given(), given, "{kind}: keys that hold are not asked for");
        for (status, code) in [(400, "ExpiredToken"), (403, "InvalidToken"), (400, "TokenRefreshRequired")] {
            let refused = || Rule::new(Fault::Answer(Canned::Error(status, code.to_owned())));
            service.token.fetch_add(1, Ordering::SeqCst);
            let given = service.given();
            proxy.add(refused().times(1));
            assert!(remote.fetch(&id).unwrap().1 == bytes, "{kind} {code}");
            assert_eq!(service.given(), given + 1, "{kind} {code}");
            service.token.fetch_add(1, Ordering::SeqCst);
            proxy.add(refused().times(1));
            assert_eq!(put(&remote, &bytes), id, "{kind} {code}");
            assert!(remote.refusals().is_empty(), "{kind} {code}");
            proxy.faults().clear();
        }
        // Without others, it is the store's answer that is told.
        proxy.add(Rule::new(Fault::Answer(Canned::ExpiredToken)));
        let error = remote.fetch(&id).unwrap_err();
        assert!(matches!(&error, BlobError::Refused(why) if why.contains("has expired")), "{kind}: {error}");
        says_no_secret(&format!("{error} {remote:?}"));
        assert_eq!(remote.refusals()[0].what(), "everything", "{kind}");
        // Reads are held back by now, and go on when there are other keys.
        proxy.faults().clear();
        service.token.fetch_add(1, Ordering::SeqCst);
        let begin = Instant::now();
        while remote.fetch(&id).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(120), "{kind}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A service of keys that does not answer fails no request as long as the store takes the old ones.
#[test]
fn keys_of_a_role_are_used_while_they_are_valid() {
    let (service, folder) = (Service::start(), tempfile::tempdir().unwrap());
    let (proxy, made, id, bytes) = behind(320, short());
    let (_, environment) = roles(&service, folder.path()).swap_remove(0);
    let remote = Remote::open(made.spec(), &environment, short(), Access::ReadOnly).unwrap();
    service.token.store(0, Ordering::SeqCst);
    proxy.add(Rule::new(Fault::Answer(Canned::ExpiredToken)).times(1));
    assert!(remote.fetch(&id).unwrap().1 == bytes);
    assert!(remote.fetch(&id).unwrap().1 == bytes && remote.refusals().is_empty());
}
