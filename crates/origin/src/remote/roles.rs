//! The keys of a role: of a web identity, a container or an instance. A service gives them, until a time that
//! it announces.
//!
//! **The store decides whether keys are valid.** It may call them expired before the announced end: the
//! role's sessions were revoked, or the machine was suspended. So the service is asked again at once, without
//! any cache. **Keys are used while they are valid.** They are renewed some minutes before their end, beside
//! the requests that use them. A service that does not answer then delays no request, and is asked again.
//!
//! The `object_store` crate speaks with the services. Its providers cache keys and cannot be told to ask
//! again. So a new provider is made each time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::Timestamp;
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use parking_lot::{Mutex, RwLock};
use tokio::time::timeout;

use super::fault::Fault;

/// Keys are renewed so long before their announced end, or after half of their time if they have less.
const BEFORE: Duration = Duration::from_secs(300);
/// Time limit of asking once.
const ASK: Duration = Duration::from_secs(10);
/// After the service gave no keys, it is asked again so much later.
const AGAIN: Duration = Duration::from_secs(10);
/// Keys are used for at least so long: a service may give some whose announced end has passed.
const LEAST: Duration = Duration::from_secs(60);
/// How long keys without an announced end are used before the service is asked again.
const UNKNOWN: Duration = Duration::from_secs(3600);

/// The end of keys that an answer announced.
pub(crate) type Ends = Arc<Mutex<Option<Timestamp>>>;

/// Makes a provider that has cached nothing.
type Make = Box<dyn Fn() -> Result<AwsCredentialProvider, Fault> + Send + Sync>;

/// Keys in use.
struct Current {
    credential: Arc<AwsCredential>,
    renew: Instant,
    end: Instant,
}

/// When the service was asked last, and what became of it.
type Asked = Option<(Instant, Result<(), Fault>)>;

/// See the [module](self).
pub(crate) struct Role {
    make: Make,
    ends: Ends,
    current: RwLock<Option<Current>>,
    /// One request to the service at a time.
    turn: tokio::sync::Mutex<Asked>,
    /// How often other keys were given.
    changes: AtomicU64,
}

impl Role {
    /// `ends` receives what the answers to the requests of `make`'s providers announce.
    pub(crate) fn new(
        ends: Ends,
        make: impl Fn() -> Result<AwsCredentialProvider, Fault> + Send + Sync + 'static,
    ) -> Role {
        Role {
            make: Box::new(make),
            ends,
            current: RwLock::new(None),
            turn: tokio::sync::Mutex::new(None),
            changes: AtomicU64::new(0),
        }
    }

    /// The keys in use, if there are any yet.
    pub(crate) fn current(&self) -> Option<Arc<AwsCredential>> {
        self.current.read().as_ref().map(|current| current.credential.clone())
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Keys for a request.
    pub(crate) async fn get(self: &Arc<Self>) -> Result<Arc<AwsCredential>, Fault> {
        let now = base::time::monotonic();
        let held = |current: &Current| (current.credential.clone(), current.renew, current.end);
        let held = self.current.read().as_ref().map(held);
        match held {
            Some((credential, renew, _)) if now < renew => Ok(credential),
            Some((credential, _, end)) if now < end => {
                if let Some(current) = &mut *self.current.write() {
                    current.renew = now + AGAIN;
                }
                let own = Arc::clone(self);
                tokio::spawn(async move { own.ask(now).await });
                Ok(credential)
            }
            _ => {
                let asked = self.ask(now).await;
                // The announced end may be wrong, as this machine's clock may be.
                self.current().ok_or_else(|| asked.err().unwrap_or(Fault::Ended))
            }
        }
    }

    /// Asks the service, unless somebody has done so since `began`.
    pub(crate) async fn ask(&self, began: Instant) -> Result<(), Fault> {
        let mut last = self.turn.lock().await;
        if let Some((at, outcome)) = &*last
            && *at >= began
        {
            return outcome.clone();
        }
        let at = base::time::monotonic();
        let outcome = self.fetch().await;
        *last = Some((at, outcome.clone()));
        outcome
    }

    async fn fetch(&self) -> Result<(), Fault> {
        *self.ends.lock() = None;
        let provider = (self.make)()?;
        let asked = timeout(ASK, provider.get_credential()).await;
        let fresh = asked.map_err(|_| Fault::Slow(ASK))?.map_err(|error| Fault::of(&error))?;
        let (end, now) = (*self.ends.lock(), base::time::monotonic());
        let left = end.map_or(UNKNOWN, |end| {
            Duration::from_nanos(end.0.saturating_sub(base::time::now().0).try_into().unwrap_or(0))
        });
        let left = left.max(LEAST);
        let renew = now + left.saturating_sub(BEFORE).max(left / 2);
        let mut current = self.current.write();
        if current.as_ref().is_some_and(|before| *before.credential != *fresh) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
        *current = Some(Current { credential: fresh, renew, end: now + left });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use object_store::CredentialProvider;

    use super::*;

    /// A service that gives a token or fails.
    #[derive(Debug)]
    struct Service(Option<String>);

    #[async_trait]
    impl CredentialProvider for Service {
        type Credential = AwsCredential;

        async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
            let away = || object_store::Error::Generic { store: "S3", source: "away".into() };
            let token = Some(self.0.clone().ok_or_else(away)?);
            Ok(Arc::new(AwsCredential { key_id: "k".to_owned(), secret_key: "s".to_owned(), token }))
        }
    }

    fn token(credential: &AwsCredential) -> &str {
        credential.token.as_deref().unwrap()
    }

    #[tokio::test]
    async fn keys_are_renewed_before_their_end_and_beside_the_requests() {
        let now: Arc<Mutex<Option<&str>>> = Arc::new(Mutex::new(Some("one")));
        let (ends, asked, text) = (Ends::default(), Arc::new(AtomicU64::new(0)), Arc::clone(&now));
        let (announced, count) = (Arc::clone(&ends), Arc::clone(&asked));
        let role = Arc::new(Role::new(ends, move || {
            count.fetch_add(1, Ordering::SeqCst);
            *announced.lock() = Some(Timestamp(base::time::now().0 + 3_600_000_000_000));
            Ok(Arc::new(Service(text.lock().map(str::to_owned))) as AwsCredentialProvider)
        }));
        let due = |end: bool| {
            let mut current = role.current.write();
            let current = current.as_mut().unwrap();
            current.renew = base::time::monotonic();
            current.end = if end { current.renew } else { current.end };
        };
        assert_eq!(token(&role.get().await.unwrap()), "one");
        assert_eq!(token(&role.get().await.unwrap()), "one");
        assert_eq!((asked.load(Ordering::SeqCst), role.changes()), (1, 0));
        // Near their end the service is away: they are used on, and it is not asked at each request.
        *now.lock() = None;
        due(false);
        for _ in 0..5 {
            assert_eq!(token(&role.get().await.unwrap()), "one");
            tokio::task::yield_now().await;
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        // The announced end has passed: the store shall decide.
        due(true);
        assert_eq!(token(&role.get().await.unwrap()), "one");
        *now.lock() = Some("two");
        due(false);
        role.current.write().as_mut().unwrap().end += UNKNOWN;
        assert_eq!(token(&role.get().await.unwrap()), "one");
        let until = base::time::monotonic() + Duration::from_secs(120);
        while role.changes() == 0 && base::time::monotonic() < until {
            tokio::task::yield_now().await;
        }
        assert_eq!((token(&role.get().await.unwrap()), role.changes()), ("two", 1));
        // Several that were refused together ask once.
        let (before, began) = (asked.load(Ordering::SeqCst), base::time::monotonic());
        let all = futures_util::future::join_all((0..20).map(|_| role.ask(began))).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(asked.load(Ordering::SeqCst), before + 1);
    }
}
