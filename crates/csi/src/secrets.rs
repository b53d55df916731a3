//! The secrets of a call: passwords and keys. They come from the orchestrator's map of secrets, and go into
//! the environment of the processes that need them, and into files that only this user reads. They are in no
//! argument, log line, status or error.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use base::Must;
use base::secret::Secret;
use node::secrets::Cleaner;

use crate::names;
use crate::proto::Texts;
use crate::records::{HALF, TEXT, read_json};
use crate::refuse::{self, Answer};

/// The secret that becomes a file: what the nodes of a fleet know.
const FLEET: &str = "fleet-secret";

/// The secrets that become variables of the same name.
const VARIABLES: &[&str] = &[
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_SAS_TOKEN",
    "COVEY_PG_PASSWORD",
    "ETCD_PASSWORD",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "PGPASSWORD",
];

/// Of these, JSON of many lines.
const DOCUMENTS: &[&str] = &["GOOGLE_SERVICE_ACCOUNT_KEY"];

/// Secrets by name.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(BTreeMap<String, String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(...)")
    }
}

impl Secrets {
    /// Takes the secrets of a call.
    pub fn take(mut texts: Texts) -> Answer<Secrets> {
        for (name, value) in &mut texts {
            // A Secret that was made from a file has the line end of the file.
            *value = value.trim().to_owned();
            let is_known = name == FLEET || VARIABLES.contains(&name.as_str());
            if !is_known {
                // A wrong name may be a secret itself, such as a password without its name.
                return Err(refuse::invalid(
                    "the secret has a key that is not known",
                    &format!("its keys may be {FLEET}, {}", VARIABLES.join(", ")),
                ));
            }
            let is_document = DOCUMENTS.contains(&name.as_str()) && !value.contains('\0');
            let line = base::secret::line(value, &format!("the secret's key {name}"));
            if let Err(error) = line
                && !is_document
            {
                return Err(refuse::invalid(error.to_string(), "make the Secret again"));
            }
            if value.is_empty() {
                let what = format!("the secret's key {name} has no value that can be used");
                return Err(refuse::invalid(what, "give it a text that is not empty"));
            }
        }
        if let Some(text) = texts.get(FLEET)
            && Secret::from_text(text).is_err()
        {
            let what = format!("the secret's key {FLEET} is no secret of a fleet");
            return Err(refuse::invalid(
                what,
                "make one with covey fleet secret FILE, and use the file's content",
            ));
        }
        Ok(Secrets(texts))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is one for a fleet.
    pub fn has_fleet(&self) -> bool {
        self.0.contains_key(FLEET)
    }

    /// Gives a process the variables.
    pub fn give(&self, command: &mut Command) {
        let variables = self.0.iter().filter(|(name, _)| *name != FLEET);
        // The two names of one password: the first one is read first.
        if self.0.contains_key("PGPASSWORD") {
            command.env_remove("COVEY_PG_PASSWORD");
        }
        command.envs(variables);
    }

    /// A text without the secrets.
    pub fn clean(&self, text: &str) -> String {
        // The cleaner leaves short values alone, since they are in every text. Here they are few, and known.
        let cleaned = Cleaner::of(self.0.values().cloned().collect()).clean(text);
        let hidden = |text: String, value: &String| match value.trim() {
            value if value.len() < 3 => text,
            value => text.replace(value, node::secrets::REMOVED),
        };
        self.0
            .iter()
            .filter(|(name, _)| *name != "AZURE_STORAGE_ACCOUNT_NAME")
            .map(|(_, value)| value)
            .fold(cleaned, hidden)
    }
}

/// The secrets of the mounts, in files that only this user reads. A mount whose daemon died is made again
/// with them.
#[derive(Debug)]
pub struct Safe(PathBuf);

impl Safe {
    /// The files in a folder, which only this user may enter.
    pub fn new(folder: PathBuf) -> Safe {
        Safe(folder)
    }

    fn kept(&self, key: &str) -> PathBuf {
        self.0.join(format!("{key}.json"))
    }

    fn earlier(&self, key: &str) -> PathBuf {
        self.0.join(format!("{key}.earlier"))
    }

    /// The file with the fleet's secret.
    pub fn fleet_file(&self, key: &str) -> PathBuf {
        self.0.join(format!("{key}.fleet"))
    }

    /// Keeps the secrets of a mount.
    pub fn keep(&self, key: &str, secrets: &Secrets) -> Answer<()> {
        debug_assert!(names::is_part(key));
        let text = serde_json::to_vec(&secrets.0).must(TEXT);
        write(&self.kept(key), &text)?;
        if let Some(secret) = secrets.0.get(FLEET) {
            write(&self.fleet_file(key), format!("{}\n", secret.trim()).as_bytes())?;
        }
        Ok(())
    }

    /// Keeps other secrets in the place of those that are kept. The new ones may be wrong, so those that the
    /// source was mounted with last stay as the earlier ones.
    pub fn change(&self, key: &str, secrets: &Secrets) -> Answer<()> {
        let kept = self.find(key)?;
        if kept == *secrets {
            return Ok(());
        }
        if !self.earlier(key).exists() {
            write(&self.earlier(key), &serde_json::to_vec(&kept.0).must(TEXT))?;
        }
        self.keep(key, secrets)
    }

    /// Exchanges the earlier secrets and those that are kept. Returns the ones that are kept now; None if
    /// there are no earlier ones.
    pub fn swap(&self, key: &str) -> Answer<Option<Secrets>> {
        let kept = self.find(key)?;
        let Some(earlier) = read_json(&self.earlier(key))?.map(Secrets) else { return Ok(None) };
        self.keep(key, &earlier)?;
        write(&self.earlier(key), &serde_json::to_vec(&kept.0).must(TEXT))?;
        Ok(Some(earlier))
    }

    /// Forgets the earlier secrets: the source is mounted with those that are kept.
    pub fn settle(&self, key: &str) {
        // One that stays is only tried later, and in vain.
        let _ = fs::remove_file(self.earlier(key));
    }

    /// The secrets that were kept; none if there are none.
    pub fn find(&self, key: &str) -> Answer<Secrets> {
        node::secrets::keep_from_dumps();
        Ok(Secrets(read_json(&self.kept(key))?.unwrap_or_default()))
    }

    /// Forgets them.
    pub fn forget(&self, key: &str) {
        for file in [self.kept(key), self.earlier(key), self.fleet_file(key)] {
            // A file that is not there is as it should be. One that stays is read by this user only.
            let _ = fs::remove_file(file);
        }
    }
}

/// Writes a file of mode 0600, whole or not at all.
pub fn write(path: &Path, bytes: &[u8]) -> Answer<()> {
    let new = path.with_extension(format!("{HALF}{}", names::hash(&format!("{:?}", base::random::id16()))));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&new);
        refuse::io(format!("cannot write {}", path.display()), &error)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_known_names_are_taken_and_a_refusal_shows_no_value() {
        assert!(Secrets::take(texts(&[("PGPASSWORD", "right-s3cret")])).is_ok());
        for pair in [
            ("hunter2-s3cret", "x"),
            ("LD_PRELOAD", "s3cret.so"),
            ("PATH", "/s3cret"),
            (FLEET, "s3cret-short"),
        ] {
            let status = Secrets::take(texts(&[pair])).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{pair:?}");
            assert!(!status.message().contains("s3cret"), "{}", status.message());
        }
    }

    /// `kubectl create secret --from-file` keeps the line end of the file: the database refused the password.
    #[test]
    fn regression_a_secret_may_end_with_a_line_end_and_has_none_inside() {
        let json = "{\n  \"private_key\": \"x\"\n}\n";
        let given = [
            ("PGPASSWORD", "right-s3cret\n"),
            ("AWS_SECRET_ACCESS_KEY", " right-s3cret\r\n"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", json),
            (FLEET, "0123456789abcdef\n"),
        ];
        let sent = [
            ("PGPASSWORD", "right-s3cret"),
            ("AWS_SECRET_ACCESS_KEY", "right-s3cret"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", json.trim()),
            (FLEET, "0123456789abcdef"),
        ];
        assert_eq!(Secrets::take(texts(&given)).unwrap().0, texts(&sent));
        for (name, value) in [
            ("PGPASSWORD", "right\ns3cret"),
            ("ETCD_PASSWORD", "right\rs3cret\n"),
            ("AWS_SECRET_ACCESS_KEY", "right\0s3cret"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", "{\0s3cret}"),
        ] {
            let said = Secrets::take(texts(&[(name, value)])).unwrap_err();
            assert!(said.message().contains(name) && said.message().contains("control character"), "{said}");
            assert!(!said.message().contains("s3cret"), "{said}");
        }
        assert!(Secrets::take(texts(&[("PGPASSWORD", "\n")])).is_err());
    }

    #[test]
    fn a_text_is_cleaned_and_nothing_prints_a_secret() {
        let secrets =
            Secrets::take(texts(&[("PGPASSWORD", "abcd"), ("AWS_SECRET_ACCESS_KEY", "right-s3cret")]))
                .unwrap();
        let text = secrets.clean("refused: right-s3cret, abcd");
        assert!(!text.contains("s3cret") && !text.contains("abcd"), "{text}");
        assert!(!format!("{secrets:?}").contains("abcd"));
    }

    #[test]
    fn kept_secrets_are_this_users_alone() {
        let folder = tempfile::tempdir().unwrap();
        let safe = Safe::new(folder.path().to_owned());
        let secrets = Secrets::take(texts(&[("PGPASSWORD", "right-s3cret")])).unwrap();
        safe.keep("00ff", &secrets).unwrap();
        for entry in fs::read_dir(folder.path()).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(safe.find("00ff").unwrap(), secrets);
        safe.forget("00ff");
        assert!(safe.find("00ff").unwrap().is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// New secrets may be wrong, so the earlier ones stay until the source is mounted with the new ones.
    #[test]
    fn earlier_secrets_stay_until_the_next_mount() {
        let folder = tempfile::tempdir().unwrap();
        let safe = Safe::new(folder.path().to_owned());
        let [one, two, three] = ["one-s3cret", "two-s3cret", "three-s3cret"]
            .map(|password| Secrets::take(texts(&[("PGPASSWORD", password)])).unwrap());
        // What is mounted with the rights of the machine has no secrets.
        safe.change("00ff", &one).unwrap();
        assert_eq!(safe.swap("00ff").unwrap(), Some(Secrets::default()));
        assert_eq!(safe.swap("00ff").unwrap(), Some(one.clone()));
        safe.settle("00ff");
        safe.change("00ff", &one).unwrap();
        assert_eq!(safe.swap("00ff").unwrap(), None, "nothing has changed");
        for new in [&two, &three] {
            safe.change("00ff", new).unwrap();
            assert_eq!(safe.find("00ff").unwrap(), *new);
        }
        for entry in fs::read_dir(folder.path()).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        // Those of the last mount, and not the ones between.
        assert_eq!(safe.swap("00ff").unwrap(), Some(one.clone()));
        assert_eq!(safe.find("00ff").unwrap(), one);
        assert_eq!(safe.swap("00ff").unwrap(), Some(three));
        safe.forget("00ff");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
