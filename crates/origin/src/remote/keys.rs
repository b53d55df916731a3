//! The keys that sign requests to an S3 store, and where they come from.
//!
//! They are looked for in the order of Amazon's own tools: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the
//! profile (AWS_PROFILE, else `default`) in the credentials file and the configuration file; a web identity
//! (AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN); the container's credentials (AWS_CONTAINER_CREDENTIALS_*);
//! the instance metadata service. The last is used only if something listens there. So a machine without it
//! and without keys gets an error at once that lists all these places, and does not wait for an address that
//! does not answer.
//!
//! Keys from files are read again when the store says that they have expired, and those of roles are asked
//! for again ([`super::roles`]). So renewing them needs no new mount.

use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::RwLock;

use super::environment::{Environment, read_profile};
use super::fault::Fault;
use super::lines::one_line;
use super::roles::Role;
use super::spec::host_of;

/// The time limit of a connection to the instance metadata service.
const METADATA_CONNECT: Duration = Duration::from_millis(1000);

/// The three secrets. Never printed.
#[derive(Clone, PartialEq, Eq)]
struct Triple {
    id: String,
    secret: String,
    token: Option<String>,
}

/// Where keys come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Environment,
    Profile {
        name: String,
        file: PathBuf,
    },
    WebIdentity,
    Container,
    Instance,
    /// None were found. Each request looks for them again.
    Nowhere,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Environment => f.write_str("AWS_ACCESS_KEY_ID of the environment"),
            Source::Profile { name, file } => {
                write!(f, "aws_access_key_id of the profile {name} in {}", file.display())
            }
            Source::WebIdentity => f.write_str("the web identity in AWS_WEB_IDENTITY_TOKEN_FILE"),
            Source::Container => f.write_str("the container's credentials"),
            Source::Instance => f.write_str("the instance metadata service"),
            Source::Nowhere => f.write_str("nowhere: none were found"),
        }
    }
}

/// The settings of a profile besides its keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profile {
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
}

/// Reads region and endpoint of the chosen profile.
///
/// # Errors
/// The named profile does not exist, or a file cannot be read.
pub(crate) fn profile(environment: &Environment) -> Result<Profile, Fault> {
    let (name, named) = environment.profile();
    let files = environment.aws_files();
    let mut found = Profile::default();
    let mut seen = false;
    for file in files.iter().flatten() {
        let Some(values) = read(file, name)? else { continue };
        seen = true;
        found.region = found.region.or_else(|| values.get("region").cloned());
        let endpoint = values.get("s3.endpoint_url").or_else(|| values.get("endpoint_url"));
        found.endpoint = found.endpoint.or_else(|| endpoint.cloned());
    }
    if named && !seen {
        let files: Vec<String> = files.iter().flatten().map(|file| file.display().to_string()).collect();
        let what = format!("there is no profile {name} (AWS_PROFILE) in {}", files.join(" or "));
        return Err(Fault::no_keys(what, "correct the name, or add the profile"));
    }
    Ok(found)
}

fn read(file: &Path, name: &str) -> Result<Option<std::collections::BTreeMap<String, String>>, Fault> {
    read_profile(file, name).map_err(|error| match error.raw_os_error() {
        // Covey refuses the file, not the system.
        None if error.kind() == io::ErrorKind::PermissionDenied => Fault::no_keys(
            format!("{} is not used: {error}", file.display()),
            format!("chmod 600 {}", file.display()),
        ),
        _ => Fault::no_keys(format!("{} cannot be read ({error})", file.display()), "make it readable"),
    })
}

/// The keys that sign this process's requests. They can be read again.
pub(crate) struct Keys {
    environment: Environment,
    pub(crate) source: Source,
    now: RwLock<Option<Arc<AwsCredential>>>,
    /// How often other keys were found in the file.
    changes: AtomicU64,
    /// Of a role: what asks for its keys.
    role: OnceLock<Arc<Role>>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys(...) from {}", self.source)
    }
}

impl Keys {
    /// Looks for keys.
    ///
    /// # Errors
    /// There are none, or half of them. The fault lists where they were looked for.
    pub(crate) fn find(environment: &Environment) -> Result<Keys, Fault> {
        let keys = |source, triple: Option<Triple>| Keys {
            environment: environment.clone(),
            source,
            now: RwLock::new(triple.map(credential)),
            changes: AtomicU64::new(0),
            role: OnceLock::new(),
        };
        if let Some(triple) = in_environment(environment)? {
            return Ok(keys(Source::Environment, Some(triple)));
        }
        if let Some((source, triple)) = in_profile(environment)? {
            return Ok(keys(source, Some(triple)));
        }
        let has = |name: &str| environment.get(name).is_some();
        if has("AWS_WEB_IDENTITY_TOKEN_FILE") && has("AWS_ROLE_ARN") {
            return Ok(keys(Source::WebIdentity, None));
        }
        if has("AWS_CONTAINER_CREDENTIALS_FULL_URI") || has("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
            return Ok(keys(Source::Container, None));
        }
        let off = environment
            .get("AWS_EC2_METADATA_DISABLED")
            .is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let metadata = environment.get("AWS_METADATA_ENDPOINT").unwrap_or("http://169.254.169.254");
        if !off && listens(metadata) {
            return Ok(keys(Source::Instance, None));
        }
        Err(Fault::no_keys(nowhere(environment, off), "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"))
    }

    /// Looks for keys for an existing volume, which works in part without its origin: keys that are missing
    /// now may be in their file later.
    pub(crate) fn find_or_later(environment: &Environment) -> Keys {
        let later = || Keys {
            environment: environment.clone(),
            source: Source::Nowhere,
            now: RwLock::new(None),
            changes: AtomicU64::new(0),
            role: OnceLock::new(),
        };
        Keys::find(environment).unwrap_or_else(|_| later())
    }

    /// Whether they are those of a role, which a service gives.
    pub(crate) fn are_of_role(&self) -> bool {
        matches!(self.source, Source::WebIdentity | Source::Container | Source::Instance)
    }

    /// Whether a container's service gives them.
    pub(crate) fn are_of_container(&self) -> bool {
        matches!(self.source, Source::Container)
    }

    /// Sets what asks for the keys of a role.
    pub(crate) fn ask_with(&self, role: Role) {
        // There is one already if two stores are made with the same keys.
        let _ = self.role.set(Arc::new(role));
    }

    /// Reads the keys from their file again. Returns whether they have changed.
    pub(crate) fn reload(&self) -> bool {
        let Source::Profile { .. } = self.source else { return false };
        // Read under the lock: of two that read at the same time, the older content must not stay.
        let mut now = self.now.write();
        let Ok(Some((_, triple))) = in_profile(&self.environment) else { return false };
        let fresh = credential(triple);
        let differ = now.as_ref().is_some_and(|now| **now != *fresh);
        *now = Some(fresh);
        if differ {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
        differ
    }

    /// How often the keys have changed. Taken before a request, for [`Keys::differ_from`].
    pub(crate) fn changes(&self) -> u64 {
        let of_role = self.role.get().map_or(0, |role| role.changes());
        self.changes.load(Ordering::Acquire) + of_role
    }

    /// Whether a request that began at this number of changes was signed with other keys than there are now.
    /// Reads the file again, or asks for the role's keys, if that was not done since `began`. Requests in
    /// flight together fail together, and only the first of them finds new keys. The others find that the
    /// keys have changed since they were signed.
    pub(crate) async fn differ_from(&self, changes: u64, began: Instant) -> bool {
        if self.reload() || self.changes() != changes {
            return true;
        }
        if let Some(role) = self.role.get() {
            // If it fails, the store's answer says more.
            let _ = role.ask(began).await;
        }
        self.changes() != changes
    }

    /// The text with each of the keys replaced by `...`.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let now = self.now.read().clone().or_else(|| self.role.get()?.current());
        let Some(now) = now else { return text.to_owned() };
        let secrets = [Some(&now.key_id), Some(&now.secret_key), now.token.as_ref()];
        let long = secrets.into_iter().flatten().filter(|secret| secret.len() >= 4);
        long.fold(text.to_owned(), |text, secret| text.replace(&**secret, "..."))
    }
}

#[async_trait]
impl CredentialProvider for Keys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        if let Some(now) = self.now.read().clone() {
            return Ok(now);
        }
        let failed = |fault| object_store::Error::Generic { store: "S3", source: Box::new(fault) };
        if let Some(role) = self.role.get() {
            return role.get().await.map_err(failed);
        }
        // It says if those of the environment cannot be used.
        in_environment(&self.environment).map_err(failed)?;
        match in_profile(&self.environment).map_err(failed)? {
            Some((_, triple)) => {
                let found = credential(triple);
                *self.now.write() = Some(found.clone());
                Ok(found)
            }
            None => Err(failed(Fault::no_keys(
                nowhere(&self.environment, true),
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ))),
        }
    }
}

fn credential(triple: Triple) -> Arc<AwsCredential> {
    Arc::new(AwsCredential { key_id: triple.id, secret_key: triple.secret, token: triple.token })
}

fn in_environment(environment: &Environment) -> Result<Option<Triple>, Fault> {
    let id = environment.line("AWS_ACCESS_KEY_ID")?;
    let secret = environment.line("AWS_SECRET_ACCESS_KEY")?;
    let half = |is: &str, lacks: &str| {
        Err(Fault::no_keys(format!("{is} is in the environment and {lacks} is not"), "set both, or neither"))
    };
    match (id, secret) {
        (Some(id), Some(secret)) => Ok(Some(Triple {
            id: id.to_owned(),
            secret: secret.to_owned(),
            token: match environment.line("AWS_SESSION_TOKEN")? {
                Some(token) => Some(token.to_owned()),
                None => environment.line("AWS_SECURITY_TOKEN")?.map(str::to_owned),
            },
        })),
        (Some(_), None) => half("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        (None, Some(_)) => half("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
        (None, None) => Ok(None),
    }
}

fn in_profile(environment: &Environment) -> Result<Option<(Source, Triple)>, Fault> {
    let (name, named) = environment.profile();
    let mut other = None;
    for file in environment.aws_files().into_iter().flatten() {
        let Some(values) = read(&file, name)? else { continue };
        let get = |key: &str| {
            let from = format!("{key} of the profile {name} in {}", file.display());
            let value = values.get(key).filter(|value| !value.is_empty());
            value.map(|value| one_line(value, &from).map(str::to_owned)).transpose()
        };
        match (get("aws_access_key_id")?, get("aws_secret_access_key")?) {
            (Some(id), Some(secret)) => {
                let token = get("aws_session_token")?;
                let source = Source::Profile { name: name.to_owned(), file };
                return Ok(Some((source, Triple { id, secret, token })));
            }
            (None, None) => {}
            _ => {
                let what = format!("the profile {name} in {} has only half of a key", file.display());
                return Err(Fault::no_keys(what, "give it aws_access_key_id and aws_secret_access_key"));
            }
        }
        let foreign = ["credential_process", "sso_session", "sso_start_url", "source_profile", "role_arn"];
        other = other.or_else(|| foreign.into_iter().find(|key| values.contains_key(*key)));
    }
    match other {
        Some(way) if named => Err(Fault::no_keys(
            format!("the profile {name} gets its keys by {way}, which covey does not do"),
            "run it under `aws configure export-credentials --format env`",
        )),
        _ => Ok(None),
    }
}

/// Whether anything listens at a URL's host. A host that does accepts the connection at once.
pub(crate) fn listens(url: &str) -> bool {
    let host = host_of(url);
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let Ok(mut addresses) = address.to_socket_addrs() else { return false };
    addresses.any(|address| TcpStream::connect_timeout(&address, METADATA_CONNECT).is_ok())
}

fn nowhere(environment: &Environment, off: bool) -> String {
    let (name, _) = environment.profile();
    let files: Vec<String> =
        environment.aws_files().iter().flatten().map(|file| file.display().to_string()).collect();
    let files = if files.is_empty() { "~/.aws (HOME is not set)".to_owned() } else { files.join(" and ") };
    let metadata = if off { "it is turned off" } else { "it does not answer" };
    format!(
        "no keys were found; looked at AWS_ACCESS_KEY_ID, the profile {name} in {files}, AWS_WEB_IDENTITY_TOKEN_FILE, \
         AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and the instance metadata service ({metadata})"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures_util::future::join;

    use super::super::engine::{Call, What};
    use super::super::fault::{Head, read_refusal};
    use super::super::tests::{fresh, server};
    use super::super::{Limits, Remote};
    use super::*;
    use crate::Access;

    /// Writes a file that only its owner can read.
    fn keep(path: &Path, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    #[test]
    fn regression_keys_that_others_can_read_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let (home, environment) = with_files(TWO, "[default]\nregion = x\n", &[]);
        let set = |name: &str, mode| {
            fs::set_permissions(home.path().join(".aws").join(name), fs::Permissions::from_mode(mode))
                .unwrap();
        };
        set("config", 0o644);
        assert!(Keys::find(&environment).is_ok(), "what holds no key may be read by all");
        for mode in [0o644, 0o620, 0o602] {
            set("credentials", mode);
            assert!(says(Keys::find(&environment)).contains("chmod 600"), "{mode:o}");
        }
    }

    fn with_files(
        credentials: &str,
        config: &str,
        more: &[(&str, &str)],
    ) -> (tempfile::TempDir, Environment) {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".aws")).unwrap();
        keep(&home.path().join(".aws/credentials"), credentials);
        fs::write(home.path().join(".aws/config"), config).unwrap();
        let home_text = home.path().to_str().unwrap().to_owned();
        let all = [("HOME", &*home_text), ("AWS_EC2_METADATA_DISABLED", "true")];
        let environment = Environment::of(all.iter().chain(more).copied());
        (home, environment)
    }

    fn says(found: Result<Keys, Fault>) -> String {
        found.err().unwrap().to_string()
    }

    const TWO: &str = "[default]\naws_access_key_id=AKIAONE\naws_secret_access_key=SECRETONE\n[work]\naws_access_key_id=AKIATWO\naws_secret_access_key=SECRETTWO\naws_session_token=TOKENTWO\n";

    #[test]
    fn keys_are_found_in_the_order_of_amazons_tools() {
        let (_home, environment) = with_files(TWO, "[profile work]\nregion=eu-west-1\n", &[]);
        assert!(Keys::find(&environment).unwrap().source.to_string().contains("the profile default"));
        let (_home, environment) = with_files(
            TWO,
            "[profile work]\nregion=eu-west-1\nendpoint_url=http://x\n",
            &[("AWS_PROFILE", "work")],
        );
        let keys = Keys::find(&environment).unwrap();
        assert_eq!(keys.now.read().as_ref().unwrap().token.as_deref(), Some("TOKENTWO"));
        let profile = profile(&environment).unwrap();
        assert_eq!(
            (profile.region.as_deref(), profile.endpoint.as_deref()),
            (Some("eu-west-1"), Some("http://x"))
        );
        let own = [
            ("AWS_ACCESS_KEY_ID", "AKIAENV"),
            ("AWS_SECRET_ACCESS_KEY", "SECRETENV"),
            ("AWS_PROFILE", "work"),
        ];
        let (_home, environment) = with_files(TWO, "", &own);
        assert!(matches!(Keys::find(&environment).unwrap().source, Source::Environment));
        let web = [("AWS_WEB_IDENTITY_TOKEN_FILE", "/x"), ("AWS_ROLE_ARN", "arn")];
        let (_home, environment) = with_files("", "", &web);
        assert!(matches!(Keys::find(&environment).unwrap().source, Source::WebIdentity));
    }

    #[test]
    fn what_is_lacking_is_said_in_one_line() {
        let (_home, environment) = with_files("", "", &[]);
        let said = says(Keys::find(&environment));
        assert!(
            said.contains("AWS_ACCESS_KEY_ID")
                && said.contains(".aws/credentials")
                && said.contains("turned off"),
            "{said}"
        );
        let (_home, environment) = with_files("", "", &[("AWS_ACCESS_KEY_ID", "AKIAHALF")]);
        assert!(says(Keys::find(&environment)).contains("AWS_SECRET_ACCESS_KEY is not"));
        let (_home, environment) = with_files("[default]\naws_access_key_id=AKIAHALF\n", "", &[]);
        assert!(says(Keys::find(&environment)).contains("only half of a key"));
        let (_home, environment) = with_files("", "", &[("AWS_PROFILE", "gone")]);
        assert!(profile(&environment).unwrap_err().to_string().contains("there is no profile gone"));
        let (_home, environment) =
            with_files("", "[profile p]\ncredential_process=x\n", &[("AWS_PROFILE", "p")]);
        assert!(says(Keys::find(&environment)).contains("credential_process"));
    }

    /// A secret that Kubernetes mounts, or `export KEY="$(cat FILE; echo)"`: stores refused the signature.
    #[test]
    fn regression_keys_may_end_with_a_line_end_and_have_none_inside() {
        let keys = |id: &str, secret: &str, token: &str| {
            let all = [
                ("AWS_ACCESS_KEY_ID", id),
                ("AWS_SECRET_ACCESS_KEY", secret),
                ("AWS_SESSION_TOKEN", token),
                ("AWS_EC2_METADATA_DISABLED", "true"),
            ];
            Environment::of(all)
        };
        for end in ["\n", "\r\n", " \n", "\t"] {
            let environment =
                keys(&format!("AKIAONE{end}"), &format!(" SECRETONE{end}"), &format!("TOKENONE{end}"));
            let found = Keys::find(&environment).unwrap();
            let now = found.now.read().clone().unwrap();
            let sent = (&*now.key_id, &*now.secret_key, now.token.as_deref());
            assert_eq!(sent, ("AKIAONE", "SECRETONE", Some("TOKENONE")), "{end:?}");
        }
        let blank = keys("AKIAONE", "SECRETONE", "\n");
        assert_eq!(Keys::find(&blank).unwrap().now.read().as_ref().unwrap().token, None);
        for (name, wrong) in [
            ("AWS_ACCESS_KEY_ID", keys("AKIA\nONE", "SECRETONE", "TOKENONE")),
            ("AWS_SECRET_ACCESS_KEY", keys("AKIAONE", "SECRET\rONE", "TOKENONE")),
            ("AWS_SESSION_TOKEN", keys("AKIAONE", "SECRETONE", "TOKEN\0ONE\n")),
        ] {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let later = Arc::new(Keys::find_or_later(&wrong));
            let later = Fault::of(&runtime.block_on(later.get_credential()).unwrap_err()).to_string();
            for said in [says(Keys::find(&wrong)), later] {
                assert!(said.contains(name) && said.contains("control character"), "{said}");
                assert!(
                    !["AKIA", "SECRETONE", "TOKENONE", "ONE"].iter().any(|part| said.contains(part)),
                    "{said}"
                );
            }
        }
        let text = TWO.replace("SECRETONE", "SECRET\u{b}ONE");
        let (_home, environment) = with_files(&text, "", &[]);
        let said = says(Keys::find(&environment));
        assert!(said.contains("aws_secret_access_key of the profile default in"), "{said}");
        assert!(said.contains(".aws/credentials") && !said.contains("ONE"), "{said}");
    }

    #[test]
    fn keys_that_come_later_are_found_later() {
        let (home, environment) = with_files("", "", &[]);
        let provider = Arc::new(Keys::find_or_later(&environment));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let error = runtime.block_on(provider.get_credential()).unwrap_err();
        assert!(
            matches!(Fault::of(&error), Fault::NoKeys { what, .. } if what.contains("AWS_ACCESS_KEY_ID"))
        );
        fs::write(home.path().join(".aws/credentials"), TWO).unwrap();
        assert_eq!(runtime.block_on(provider.get_credential()).unwrap().key_id, "AKIAONE");
    }

    #[test]
    fn a_metadata_service_is_used_only_where_one_listens() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", nobody.local_addr().unwrap());
        let environment = Environment::of([("AWS_METADATA_ENDPOINT", &*url)]);
        assert!(matches!(Keys::find(&environment).unwrap().source, Source::Instance));
        drop(nobody);
        assert!(says(Keys::find(&environment)).contains("does not answer"));
    }

    /// Of two requests that were signed with the old keys, the first to fail read the new ones and went on.
    /// The other then found no change in the file, and failed, as did all reads after it for a while.
    #[test]
    fn regression_all_requests_in_flight_go_on_with_renewed_keys() {
        let text = |token: &str| {
            format!(
                "[default]\naws_access_key_id={}\naws_secret_access_key={}\naws_session_token={token}\n",
                s3server::KEY,
                s3server::SECRET
            )
        };
        let limits = Limits::default();
        let made = fresh(&server().endpoint(), limits);
        let (home, environment) = with_files(&text("old"), "", &[]);
        let remote = Remote::open(made.spec(), &environment, limits, Access::ReadOnly).unwrap();
        let body = "<Error><Code>ExpiredToken</Code></Error>";
        let expired = read_refusal(400, "", &Head::default(), body, str::to_owned);
        assert!(expired.is_about_keys());
        let (both, file) = (tokio::sync::Barrier::new(2), home.path().join(".aws/credentials"));
        let (both, file, expired) = (&both, &file, &expired);
        let one = |tries: u32| async move {
            if tries > 0 {
                return Ok(());
            }
            both.wait().await;
            keep(file, &text("new"));
            Err(expired.clone())
        };
        let minute = Duration::from_secs(60);
        let deadline = base::Deadline::after(minute);
        let call = Call { what: What::Small, deadline, one: minute, tries: 4, hedge: false };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let calls = join(remote.engine.run(call, None, one), remote.engine.run(call, None, one));
        let done = runtime.block_on(calls);
        assert!(matches!(done, (Ok(()), Ok(()))), "{done:?}");
        assert!(remote.refusals().is_empty());
    }

    #[test]
    fn renewed_keys_are_read_again_and_none_is_shown() {
        let (home, environment) = with_files(TWO, "", &[("AWS_PROFILE", "work")]);
        let keys = Keys::find(&environment).unwrap();
        assert!(!keys.reload(), "nothing changed");
        keep(&home.path().join(".aws/credentials"), &TWO.replace("TOKENTWO", "TOKENNEW"));
        assert!(keys.reload() && !keys.reload());
        let shown = format!("{keys:?} {}", keys.scrub("AKIATWO SECRETTWO TOKENNEW plain"));
        assert!(shown.contains("plain"));
        assert!(!["AKIA", "SECRET", "TOKEN"].iter().any(|secret| shown.contains(secret)), "{shown}");
    }
}
