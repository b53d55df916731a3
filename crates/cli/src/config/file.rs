//! Parses one configuration file. The file is TOML, and every value keeps its line number.
//!
//! An error names the file and the line, and never the value. The value may be a secret in the wrong place.

use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use node::secrets;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::known::Known;

/// A section of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Section {
    /// `[mount]`
    Mount,
    /// `[origin]`
    Origin,
    /// `[log]`
    Log,
    /// `[volume."NAME"]`
    Volume(String),
}

impl Section {
    /// The section's head, as it is written.
    pub fn head(&self) -> String {
        match self {
            Section::Mount => "[mount]".to_owned(),
            Section::Origin => "[origin]".to_owned(),
            Section::Log => "[log]".to_owned(),
            Section::Volume(name) => format!("[volume.\"{name}\"]"),
        }
    }

    /// Whether a key in this section overrides the same key in the other section.
    pub fn overrides(&self, other: &Section) -> bool {
        self == other
            || matches!(self, Section::Volume(_)) && matches!(other, Section::Mount | Section::Origin)
    }
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// True or false.
    Flag(bool),
    /// A text, or a number as text.
    Text(String),
}

/// One line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The section.
    pub section: Section,
    /// The key, in the program's spelling.
    pub key: String,
    /// The key's value.
    pub value: Value,
    /// The file.
    pub file: PathBuf,
    /// The line number, from 1.
    pub line: usize,
}

/// A place in a file, for messages.
struct Place<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Place<'_> {
    fn line(&self, at: usize) -> usize {
        self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
    }

    fn failure(&self, at: usize, what: &str) -> Failure {
        let mut failure = Failure::usage(format!("{}, line {}: {what}", self.file.display(), self.line(at)));
        failure.code = "configuration".into();
        failure
    }
}

type Keyed<'a, 'i> = (&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>);

/// Parses the text of a file.
///
/// # Errors
/// The text is not TOML, or it has an unknown key, an invalid value, or a key that looks like a credential.
pub fn read(file: &Path, text: &str, known: &Known) -> Result<Vec<Entry>> {
    let place = Place { file, text };
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        place.failure(at, error.message()).next("covey config --example shows how it is written")
    })?;
    let mut entries = Vec::new();
    for (key, value) in table.get_ref().iter() {
        let name = key.get_ref().as_ref();
        let section = match name {
            "mount" => Section::Mount,
            "origin" => Section::Origin,
            "log" => Section::Log,
            "volume" => {
                for (name, value) in table_of(&place, (key, value))?.iter() {
                    let section = Section::Volume(name.get_ref().to_string());
                    section_of(&place, section, (name, value), known, &mut entries)?;
                }
                continue;
            }
            _ => return Err(no_section(&place, key, name)),
        };
        section_of(&place, section, (key, value), known, &mut entries)?;
    }
    // Restores the file's order, since the parser returns the entries of a table sorted by name.
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

fn no_section(place: &Place<'_>, key: &Spanned<std::borrow::Cow<'_, str>>, name: &str) -> Failure {
    if secrets::is_secret_name(name) {
        return credential(place, key.span().start, name);
    }
    place.failure(key.span().start, &format!("there is no section {name}")).next(
        "there are [mount], [origin], [log] and [volume.\"/srv/volume\"]; a key belongs into one of them",
    )
}

fn table_of<'a, 'i>(place: &Place<'_>, (key, value): Keyed<'a, 'i>) -> Result<&'a DeTable<'i>> {
    value.get_ref().as_table().ok_or_else(|| {
        let name = key.get_ref();
        place
            .failure(key.span().start, &format!("{name} is a section and not a key"))
            .next(format!("write it as [{name}] on a line of its own, with its keys below"))
    })
}

fn section_of(
    place: &Place<'_>,
    section: Section,
    both: Keyed<'_, '_>,
    known: &Known,
    entries: &mut Vec<Entry>,
) -> Result<()> {
    for (key, value) in table_of(place, both)?.iter() {
        let (at, name) = (key.span().start, key.get_ref().as_ref());
        if secrets::is_secret_name(name) {
            return Err(credential(place, at, name));
        }
        let Some(found) = known.find(&section, name) else {
            return Err(unknown(place, at, &section, name, known));
        };
        let Some(value) = plain(value.get_ref()) else {
            let what = format!("{name} is to be a text, a number, true or false");
            return Err(place.failure(at, &what).next("covey config --example shows how it is written"));
        };
        if matches!(&value, Value::Text(text) if secrets::is_in_address(text)) {
            return Err(credential(place, at, name));
        }
        if let Some(why) = known.refuse(&section, &found, &value) {
            let what = format!("{name} cannot have this value");
            return Err(place
                .failure(at, &what)
                .why(why)
                .next("covey config --example shows how it is written"));
        }
        entries.push(Entry {
            section: section.clone(),
            key: found,
            value,
            file: place.file.to_owned(),
            line: place.line(at),
        });
    }
    Ok(())
}

fn unknown(place: &Place<'_>, at: usize, section: &Section, name: &str, known: &Known) -> Failure {
    let failure = place.failure(at, &format!("there is no {name} in {}", section.head()));
    match known.nearest(section, name) {
        Some(nearest) => failure.next(format!("did you mean {nearest}?")),
        None => failure.next(format!("known there are: {}", known.keys(section).join(", "))),
    }
}

fn credential(place: &Place<'_>, at: usize, name: &str) -> Failure {
    place
        .failure(at, &format!("{name} holds a credential, and a configuration file is no place for one"))
        .next("take it out, and put it where the store's own tools look: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials")
}

fn plain(value: &DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::Boolean(on) => Value::Flag(*on),
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => {
            Value::Text(i64::from_str_radix(number.as_str(), number.radix()).ok()?.to_string())
        }
        DeValue::Float(number) => Value::Text(number.as_str().parse::<f64>().ok()?.to_string()),
        _ => return None,
    })
}
