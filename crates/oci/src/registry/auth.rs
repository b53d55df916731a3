//! What a registry wants before it answers, and the user's credentials for it.
//!
//! Credentials come from the environment (`COVEY_REGISTRY_USER` and `COVEY_REGISTRY_PASSWORD`), or from the
//! files that `docker login`, `podman login` and `skopeo login` write. Programs that keep credentials
//! elsewhere (credential helpers) are not run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use api::error::{Failure, Result};
use base64_simd::STANDARD;
use reqwest::Url;
use serde::Deserialize;

use super::reference::{Reference, is_loopback};

/// What a registry wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// User and password.
    Basic,
    /// A token that is had elsewhere.
    Bearer {
        /// Where.
        realm: String,
        /// For which service.
        service: Option<String>,
    },
}

impl Challenge {
    /// Parses the header `WWW-Authenticate`. None for forms that are not known.
    pub fn parse(text: &str) -> Option<Challenge> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut fields = BTreeMap::new();
        let mut rest = rest.trim();
        while let Some((key, after)) = rest.split_once('=') {
            let (value, next) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_at(after.find(',').unwrap_or(after.len())),
            };
            fields.insert(key.trim().to_ascii_lowercase(), value.to_owned());
            rest = next.trim().trim_start_matches(',').trim();
        }
        let service = fields.remove("service");
        Some(Challenge::Bearer { realm: fields.remove("realm")?, service })
    }
}

/// The address at which a token for reading is had.
///
/// # Errors
/// It is no address, or one without TLS although the registry is elsewhere.
pub fn token_url(realm: &str, service: Option<&str>, reference: &Reference) -> Result<Url> {
    let bad = |why: String| {
        Failure::new("refused", format!("the registry {} names a strange place for tokens", reference.host))
            .why(why)
    };
    let mut url = Url::parse(realm).map_err(|error| bad(format!("{realm:?}: {error}")))?;
    let local = reference.is_local() && url.host_str().is_some_and(is_loopback);
    if url.scheme() != "https" && !(url.scheme() == "http" && local) {
        return Err(bad(format!("{realm:?} is an address without TLS")));
    }
    if let Some(service) = service {
        url.query_pairs_mut().append_pair("service", service);
    }
    url.query_pairs_mut().append_pair("scope", &format!("repository:{}:pull", reference.repository));
    Ok(url)
}

/// The value of the header for a token that was given.
///
/// # Errors
/// The answer holds none.
pub fn token(bytes: &[u8]) -> Result<String> {
    #[derive(Deserialize)]
    struct Given {
        token: Option<String>,
        access_token: Option<String>,
    }
    let given: Option<Given> = serde_json::from_slice(bytes).ok();
    let token = given.and_then(|given| given.token.or(given.access_token));
    token
        .filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()))
        .map(|token| format!("Bearer {token}"))
        .ok_or_else(|| Failure::new("refused", "the registry's place for tokens gives none"))
}

/// The registry's own words in an answer that refuses.
pub fn said(bytes: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Said {
        errors: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let Said { errors } = serde_json::from_slice(bytes).ok()?;
    let One { code, message } = errors.into_iter().next()?;
    let mut text = format!("the registry says: {code} {message}");
    text.truncate(text.floor_char_boundary(300));
    Some(text.trim_end().to_owned())
}

/// The user's credentials for a registry.
#[derive(Clone, Default)]
pub struct Keys {
    /// User, colon and password in base64.
    encoded: Option<String>,
    /// Where they are from, or why there are none.
    from: String,
}

/// What is used of a file of credentials.
#[derive(Debug, Default, Deserialize)]
struct Logins {
    #[serde(default)]
    auths: BTreeMap<String, Login>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Login {
    #[serde(default)]
    auth: Option<String>,
}

impl Keys {
    /// Looks for credentials for a repository.
    ///
    /// # Errors
    /// A file of credentials cannot be understood.
    pub fn of(reference: &Reference) -> Result<Keys> {
        let get = |key: &str| std::env::var(key).ok().filter(|value| !value.trim().is_empty());
        let pair = get("COVEY_REGISTRY_USER").zip(get("COVEY_REGISTRY_PASSWORD"));
        if let Some((user, password)) = pair {
            let user = one_line(&user, "COVEY_REGISTRY_USER of the environment")?;
            let password = one_line(&password, "COVEY_REGISTRY_PASSWORD of the environment")?;
            let encoded = STANDARD.encode_to_string(format!("{user}:{password}"));
            return Ok(Keys { encoded: Some(encoded), from: format!("as {user}, by COVEY_REGISTRY_USER") });
        }
        let mut keys = Keys { encoded: None, from: "without credentials".to_owned() };
        for path in files(&get) {
            let Ok(text) = std::fs::read(&path) else { continue };
            let logins: Logins = serde_json::from_slice(&text).map_err(|error| {
                Failure::usage(format!("{} cannot be understood", path.display()))
                    .why(error.to_string())
                    .next("correct it, or log in again")
            })?;
            let shown = path.display();
            match find(&logins, reference) {
                Some(auth) => {
                    let encoded =
                        Some(login(&auth, &format!("the login for {} in {shown}", reference.host))?);
                    return Ok(Keys { encoded, from: format!("with {shown}") });
                }
                None if logins.store.is_some() || logins.helpers.contains_key(&reference.host) => {
                    keys.from = format!(
                        "without credentials: {shown} keeps them in another program, which is not run"
                    );
                }
                None => {}
            }
        }
        Ok(keys)
    }

    /// The value of the header `Authorization`.
    pub fn basic(&self) -> Option<String> {
        self.encoded.as_ref().map(|encoded| format!("Basic {encoded}"))
    }

    /// With what it was asked, for people.
    pub fn shown(&self) -> String {
        format!("it was asked {}", self.from)
    }
}

fn files(get: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    if let Some(named) = get("REGISTRY_AUTH_FILE") {
        return vec![named.into()];
    }
    let below = |folder: Option<String>, rest: &str| folder.map(|folder| PathBuf::from(folder).join(rest));
    [
        below(get("XDG_RUNTIME_DIR"), "containers/auth.json"),
        below(get("DOCKER_CONFIG"), "config.json"),
        below(get("HOME"), ".docker/config.json"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The entry of a repository: of the longest part of its path that has one, or of its host. Docker writes
/// registries as addresses, and has an own name for its own one.
fn find(logins: &Logins, reference: &Reference) -> Option<String> {
    let Reference { host, repository, .. } = reference;
    let fits = |key: &str| {
        let bare = key.trim_start_matches("https://").trim_end_matches('/');
        let (of, below) = bare.split_once('/').unwrap_or((bare, ""));
        if of != host && (host != "docker.io" || of != "index.docker.io") {
            return None;
        }
        // The path of an address is that of the interface, as in https://index.docker.io/v1/. Docker's own
        // registry is always written so, sometimes without the scheme.
        let is_address = key.contains("://") || of == "index.docker.io";
        let below = if is_address { "" } else { below };
        let rest = repository.strip_prefix(below)?;
        (below.is_empty() || rest.is_empty() || rest.starts_with('/')).then_some(below.len())
    };
    let logins = logins.auths.iter().filter_map(|(key, login)| Some((fits(key)?, login.auth.as_ref()?)));
    let found = logins.max_by_key(|(length, _)| *length).map(|(_, auth)| auth.clone());
    found.filter(|auth| !auth.trim().is_empty())
}

/// A login of a file, for the header: without the white space that ends of commands and files leave around
/// it, and in it around the password.
fn login(auth: &str, from: &str) -> Result<String> {
    let odd = || Failure::usage(format!("{from} is no user and password in base64")).next("log in again");
    let pair = STANDARD.decode_to_vec(auth.trim()).map_err(|_| odd())?;
    let pair = String::from_utf8(pair).map_err(|_| odd())?;
    Ok(STANDARD.encode_to_string(one_line(&pair, from)?))
}

fn one_line(text: &str, from: &str) -> Result<String> {
    let line = base::secret::line(text, &from);
    line.map(str::to_owned)
        .map_err(|error| Failure::usage(error.to_string()).next("log in again, or set it again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_registry_wants_is_understood() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
        };
        let text = r#"Bearer realm="https://auth.example/token",service="registry.example",scope="a:b,c""#;
        assert_eq!(Challenge::parse(text), bearer("https://auth.example/token", Some("registry.example")));
        assert_eq!(Challenge::parse("bearer realm=https://x/y"), bearer("https://x/y", None));
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Some(Challenge::Basic));
        assert!(
            ["Bearer", "Bearer realm=\"open", "Digest realm=x", ""]
                .map(Challenge::parse)
                .iter()
                .all(Option::is_none)
        );
    }

    /// `echo password | ...` and files leave a line end: the registry refused the login.
    #[test]
    fn regression_a_login_may_end_with_a_line_end_and_has_none_inside() {
        let sent = STANDARD.encode_to_string("user:s3cret word");
        for given in ["user:s3cret word", "user:s3cret word\n", "user:s3cret word \r\n"] {
            let auth = STANDARD.encode_to_string(given);
            assert_eq!(login(&auth, "it").unwrap(), sent);
            assert_eq!(login(&format!(" {auth}\n"), "it").unwrap(), sent);
        }
        assert_eq!(one_line("s3cret\n", "it").unwrap(), "s3cret");
        for auth in [&*STANDARD.encode_to_string("user:s3\ncret"), "no base64!", "x\r\ny", "////"] {
            let said = login(auth, "the login for a in /etc/auth.json").unwrap_err().to_string();
            assert!(said.contains("the login for a in /etc/auth.json"), "{said}");
            assert!(!said.contains("s3") && !said.contains("no base64!"), "{said}");
        }
    }

    #[test]
    fn credentials_go_to_no_place_without_tls() {
        let away = Reference::parse("registry.example/a").unwrap();
        let here = Reference::parse("localhost:5000/a").unwrap();
        let url = token_url("https://auth.example/t?x=1", Some("s"), &away).unwrap();
        assert_eq!(url.as_str(), "https://auth.example/t?x=1&service=s&scope=repository%3Aa%3Apull");
        assert!(token_url("http://auth.example/t", None, &away).is_err());
        assert!(token_url("http://auth.example/t", None, &here).is_err());
        assert!(token_url("http://127.0.0.1/t", None, &away).is_err());
        assert!(token_url("http://127.0.0.1/t", None, &here).is_ok());
        assert!(token_url("file:///etc/passwd", None, &here).is_err());
    }

    #[test]
    fn logins_are_found_by_host() {
        let text = r#"{"auths":{"https://index.docker.io/v1/":{"auth":"YTpi"},"ghcr.io":{"auth":"Yzpk"},
            "bad.example":{"auth":"x\r\ny"},"none.example":{}},"credsStore":"desktop"}"#;
        let logins: Logins = serde_json::from_str(text).unwrap();
        let hosts = ["docker.io", "ghcr.io", "bad.example", "none.example", "index"];
        let found = hosts.map(|host| {
            let reference = Reference { host: host.to_owned(), ..Reference::parse("a").unwrap() };
            find(&logins, &reference)
        });
        assert_eq!(found.map(|auth| auth.unwrap_or_default()), ["YTpi", "Yzpk", "x\r\ny", "", ""]);
        let bare: Logins = serde_json::from_str(&text.replace("https://", "")).unwrap();
        assert_eq!(find(&bare, &Reference::parse("library/a").unwrap()).unwrap(), "YTpi");
    }

    /// The first entry of the host was taken, whatever its path.
    #[test]
    fn regression_a_login_of_a_namespace_is_for_that_namespace() {
        let text = r#"{"auths":{"quay.io/a":{"auth":"YQ=="},"quay.io/b":{"auth":"Yg=="},
            "quay.io/b/deep":{"auth":"Yw=="},"other.io":{"auth":"ZA=="},"other.io/x":{}}}"#;
        let logins: Logins = serde_json::from_str(text).unwrap();
        let names = ["quay.io/a/app", "quay.io/b/app", "quay.io/b/deep", "quay.io/bb/app", "quay.io/c/app"];
        let found = |name: &str| find(&logins, &Reference::parse(name).unwrap()).unwrap_or_default();
        assert_eq!(names.map(found), ["YQ==", "Yg==", "Yw==", "", ""]);
        assert_eq!(["other.io/x", "other.io/y/z"].map(found), ["ZA==", "ZA=="]);
    }

    #[test]
    fn a_token_is_taken_from_either_field() {
        assert_eq!(token(br#"{"token":"a.b-c"}"#).unwrap(), "Bearer a.b-c");
        assert_eq!(token(br#"{"access_token":"x","expires_in":60}"#).unwrap(), "Bearer x");
        assert!([&b"{}"[..], b"no", br#"{"token":"a\nb"}"#].iter().all(|bytes| token(bytes).is_err()));
    }
}
