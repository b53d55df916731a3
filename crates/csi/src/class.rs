//! The kinds of volumes, as the parameters of a class and the context of a volume name them.
//!
//! | kind | parameters | context of a volume |
//! |---|---|---|
//! | published tree | `tree`, `endpoint`, `region`, `key`, `follow`, `join`, `zone` | the same |
//! | folder of a shared volume | `volume`, `folder`, `mode` | `volume`, `path` |
//! | exclusive volume of a node | `exclusive`, `mode` | `exclusive`: the folder's name |
//!
//! A key with a slash belongs to the orchestrator (`csi.storage.k8s.io/...`) and is passed over. Any other
//! key that is not listed is refused: a misspelled one would have no effect.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use engines::Address;
use node::frozen::trust::Accept;
use node::frozen::{Interval, Named};
use node::options::MountOptions;
use node::origins::Reach;
use node::secrets::is_in_address;

use crate::names;
use crate::proto::{Texts, VolumeCapability, mode};
use crate::refuse::{self, Answer};

/// The folder of a shared volume that its volumes are in, unless a class says otherwise.
const FOLDER: &str = "csi";
/// The mode of a new volume's top folder: any pod that the volume is given to may write.
const MODE: u32 = 0o777;

const TREE: &[&str] = &["tree", "endpoint", "region", "key", "follow", "join", "zone"];
const SHARED: &[&str] = &["volume", "folder", "mode"];
const SHARED_CONTEXT: &[&str] = &["volume", "path"];
const EXCLUSIVE: &[&str] = &["exclusive", "mode"];
const EXCLUSIVE_CONTEXT: &[&str] = &["exclusive"];

/// A class of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// Mounts of a published tree.
    Tree(TreeOf),
    /// Folders of a shared volume.
    Shared {
        /// The address of the shared volume.
        address: String,
        /// The folder that the volumes are in.
        folder: String,
        /// The mode of a new volume's top folder.
        mode: u32,
    },
    /// Volumes in a folder of a node.
    Exclusive {
        /// The mode of a new volume's top folder.
        mode: u32,
    },
}

/// A published tree, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeOf {
    /// `ORIGIN@NAME`.
    pub tree: String,
    /// The arguments of `covey mount` for it.
    pub args: Vec<String>,
    /// Whether its nodes are a fleet, and need its secret.
    pub in_fleet: bool,
}

/// What is mounted for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// A published tree.
    Tree(TreeOf),
    /// A folder of a shared volume.
    Shared {
        /// The address of the shared volume.
        address: String,
        /// The folder, from the volume's root. Empty for the whole.
        path: PathBuf,
    },
    /// A volume in a folder of this node.
    Exclusive {
        /// The name of its folder.
        name: String,
    },
}

impl Class {
    /// Reads the parameters of a class.
    pub fn of(parameters: &Texts) -> Answer<Class> {
        let own = own(parameters);
        let mode = || own.get("mode").map_or(Ok(MODE), |text| parse_mode(text));
        match kind(&own)? {
            "tree" => tree(&own).map(Class::Tree),
            "volume" => {
                only(&own, SHARED)?;
                let folder = own.get("folder").map_or(FOLDER, String::as_str).to_owned();
                if !names::is_part(&folder) {
                    return Err(refuse::invalid(
                        format!("the parameter folder is {folder:?}, and must be one name"),
                        "use up to 63 letters, digits, dots, hyphens and underscores, such as csi",
                    ));
                }
                Ok(Class::Shared { address: address(&own)?, folder, mode: mode()? })
            }
            _ => {
                only(&own, EXCLUSIVE)?;
                if own.get("exclusive").is_none_or(|value| value != "true") {
                    return Err(refuse::invalid(
                        "the parameter exclusive has one value",
                        "write exclusive: \"true\"",
                    ));
                }
                Ok(Class::Exclusive { mode: mode()? })
            }
        }
    }
}

impl Use {
    /// Reads the context of a volume.
    pub fn of(context: &Texts) -> Answer<Use> {
        let own = own(context);
        match kind(&own)? {
            "tree" => tree(&own).map(Use::Tree),
            "volume" => {
                only(&own, SHARED_CONTEXT)?;
                let path = own.get("path").map_or("", String::as_str);
                Ok(Use::Shared { address: address(&own)?, path: inside(path)? })
            }
            _ => {
                only(&own, EXCLUSIVE_CONTEXT)?;
                let name = own.get("exclusive").cloned().unwrap_or_default();
                match names::is_part(&name) {
                    true => Ok(Use::Exclusive { name }),
                    false => Err(refuse::invalid(
                        format!(
                            "the attribute exclusive is {name:?}, and must be the name of a volume's folder"
                        ),
                        "use one name without slashes",
                    )),
                }
            }
        }
    }
}

/// The keys that are not the orchestrator's.
pub fn own(texts: &Texts) -> Texts {
    texts
        .iter()
        .filter(|(key, _)| !key.contains('/'))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// The one key that says which kind it is.
fn kind(own: &Texts) -> Answer<&'static str> {
    let named: Vec<&'static str> =
        ["tree", "volume", "exclusive"].into_iter().filter(|key| own.contains_key(*key)).collect();
    for (key, value) in own {
        if key == "endpoint" && is_in_address(value) {
            return Err(refuse::invalid(
                format!("the parameter {key} holds a password or a key, and parameters are shown to many"),
                "take it out, and put it into the secret",
            ));
        }
        if value.is_empty() || value.starts_with('-') || value.chars().any(char::is_control) {
            return Err(refuse::invalid(
                format!("the parameter {key} has no value that can be used"),
                "leave it out, or correct it",
            ));
        }
    }
    match named[..] {
        [one] => Ok(one),
        _ => Err(refuse::invalid(
            "the parameters do not say which kind of volume is wanted",
            "give one of: volume (postgres://... or etcd://...), tree (ORIGIN@NAME), exclusive (\"true\")",
        )),
    }
}

fn only(own: &Texts, known: &[&str]) -> Answer<()> {
    match own.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(refuse::invalid(
            format!("there is no parameter {key} for this kind of volume"),
            &format!("the parameters are: {}", known.join(", ")),
        )),
    }
}

fn address(own: &Texts) -> Answer<String> {
    let text = own.get("volume").map_or("", String::as_str);
    match Address::parse(text) {
        Ok(address) => Ok(address.to_string()),
        Err(error) => Err(refuse::invalid(
            format!("the parameter volume is no address of a shared volume: {error}"),
            "write postgres://USER@HOST/DATABASE?volume=NAME or etcd://HOST:2379/?volume=NAME",
        )),
    }
}

fn parse_mode(text: &str) -> Answer<u32> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| {
        refuse::invalid(
            format!("the parameter mode is {text:?}, and no mode of a folder"),
            "write one like \"0770\"",
        )
    })
}

/// A path that stays below the volume's root.
fn inside(text: &str) -> Answer<PathBuf> {
    let mut path = PathBuf::new();
    for component in Path::new(text).components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::CurDir => {}
            _ => {
                return Err(refuse::invalid(
                    format!("the attribute path is {text:?}, and leads out of the volume"),
                    "write a path without ..",
                ));
            }
        }
    }
    Ok(path)
}

fn tree(own: &Texts) -> Answer<TreeOf> {
    only(own, TREE)?;
    let get = |key: &str| own.get(key).cloned();
    let text = get("tree").unwrap_or_default();
    let next =
        "write tree: ORIGIN@NAME, such as s3://bucket/prefix@latest; covey published ORIGIN lists the names";
    let wrong = |failure: api::error::Failure| refuse::invalid(failure.line(), next);
    let follow = get("follow").map(|text| text.parse::<Interval>());
    let follow =
        follow.transpose().map_err(|why| refuse::invalid(format!("the parameter follow: {why}"), ""))?;
    let accept = Accept { key: get("key"), accept_older: false };
    let reach = Reach { endpoint: get("endpoint"), region: get("region") };
    let named = Named::parse(&text).map_err(wrong)?;
    let Some(named) = named else {
        return Err(refuse::invalid(format!("the parameter tree is {text:?}, and no published tree"), next));
    };
    let checked = named.accepting(&accept).and_then(|named| named.reached(&reach, None)?.following(follow));
    checked.map_err(wrong)?;
    let in_fleet = own.contains_key("join");
    if own.contains_key("zone") && !in_fleet {
        return Err(refuse::invalid(
            "the parameter zone is for a fleet",
            "add join: HOST:PORT, or leave zone out",
        ));
    }
    let mut args = Vec::new();
    for key in ["endpoint", "region", "key", "join", "zone"] {
        args.extend(get(key).into_iter().flat_map(|value| [format!("--{key}"), value]));
    }
    let seconds = |every: Interval| Duration::as_secs_f64(&every.0);
    args.extend(follow.map(|every| format!("--follow={}", seconds(every))));
    Ok(TreeOf { tree: text, args, in_fleet })
}

/// What the capabilities of a call ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The mount options, as they follow `-o`.
    pub options: String,
    /// Whether the volume is only read.
    pub read_only: bool,
}

/// Reads a capability for a kind of volume.
pub fn wanted(capability: Option<&VolumeCapability>, what: &str) -> Answer<Wanted> {
    let Some(capability) = capability else {
        return Err(refuse::invalid(
            "the call names no volume_capability",
            "send one, with mount and access_mode",
        ));
    };
    if capability.block.is_some() {
        return Err(refuse::invalid("there are no block volumes here", "use volumeMode: Filesystem"));
    }
    let Some(mount) = &capability.mount else {
        return Err(refuse::invalid("the capability has no access type", "use volumeMode: Filesystem"));
    };
    if !matches!(mount.fs_type.as_str(), "" | "covey") {
        return Err(refuse::invalid(
            format!("the filesystem type {} cannot be had here", mount.fs_type),
            "leave fsType out of the class and the volume",
        ));
    }
    let options =
        MountOptions::parse(&mount.mount_flags).map_err(|failure| refuse::invalid(failure.line(), ""))?;
    let access = capability.access_mode.map_or(0, |access| access.mode);
    let only_reads = matches!(access, mode::SINGLE_NODE_READER_ONLY | mode::MULTI_NODE_READER_ONLY);
    let on_one_node = matches!(
        access,
        mode::SINGLE_NODE_WRITER
            | mode::SINGLE_NODE_READER_ONLY
            | mode::SINGLE_NODE_SINGLE_WRITER
            | mode::SINGLE_NODE_MULTI_WRITER
    );
    let refused = match what {
        _ if !(1..=mode::SINGLE_NODE_MULTI_WRITER).contains(&access) => {
            Some(("the capability has no access mode that is known", "use one of Kubernetes' accessModes"))
        }
        "tree" if !only_reads => Some(("a published tree is only read", "use the access mode ReadOnlyMany")),
        "exclusive" if !on_one_node => Some((
            "an exclusive volume is used by one node at a time",
            "use ReadWriteOnce, or a class with volume: postgres://... for many nodes",
        )),
        _ => None,
    };
    if let Some((what, next)) = refused {
        return Err(refuse::invalid(what, next));
    }
    let read_only = only_reads || options.read_only || options.frozen;
    Ok(Wanted { options: mount.mount_flags.join(","), read_only })
}

#[cfg(test)]
mod tests;
