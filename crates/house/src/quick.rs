//! The program of `make run` is made of what `make run` needs, and of nothing else: everybody who meets the
//! project waits for each of its crates.
//!
//! The rule reads the list of crates that cargo would compile for it. A crate of ours must be in
//! [`NEEDED`], a library must not belong to a part that is left out ([`LEFT_OUT`]), and all of them are at
//! most [`MOST`].

use crate::Finding;

/// Crates of ours that are compiled for `make run`, and what for.
pub const NEEDED: &[(&str, &str)] = &[
    ("api", "what commands and daemons say to each other"),
    ("archive", "imports and exports"),
    ("base", "clocks, threads, ids"),
    ("blob", "blobs and packs"),
    ("cache", "the disk of a node"),
    ("cli", "the commands"),
    ("corpus", "a mount of generated files, which node knows as a kind of mount"),
    ("engines", "addresses of shared volumes, to say that this program has no engine for them"),
    ("fetch", "fetches in flight, which cache and fleet share"),
    ("fleet", "members and placement: every published tree has them"),
    ("fs", "what POSIX says"),
    ("fuse", "the kernel"),
    ("meta", "names"),
    ("net", "sockets of the daemon, and the transport of fleet"),
    ("node", "one running Covey"),
    ("origin", "where blobs are stored"),
    ("tree", "published trees"),
];

/// Libraries that only other parts need, and the part: the feature of crates/cli that brings them.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("aya", "ebpf"),
    ("axum", "dashboard"),
    ("etcd-client", "databases"),
    ("h2", "stores"),
    ("object_store", "stores"),
    ("oci", "containers"),
    ("prost", "csi, containers, databases"),
    ("protobuf", "csi"),
    ("reqwest", "stores"),
    ("s3s", "s3"),
    ("tokio-postgres", "databases"),
    ("tonic", "csi, containers, databases"),
    ("tungstenite", "dashboard"),
    ("vhost", "guests"),
    ("vm-memory", "guests"),
];

/// How many crates are compiled for `make run` at most, macros and build scripts among them.
pub const MOST: usize = 130;

/// Checks the list of crates, one name a line, which may have a version behind it.
pub fn check(listed: &str) -> Vec<Finding> {
    let mut names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    names.sort_unstable();
    names.dedup();
    let at = |message: String| Finding::new("crates/cli/Cargo.toml", 0, message);
    let mut findings = Vec::new();
    for name in &names {
        if let Some((_, part)) = LEFT_OUT.iter().find(|(library, _)| library == name) {
            findings.push(at(format!(
                "{name} is compiled for make run, and only the part {part} needs it: make the dependency optional"
            )));
        }
        if let Some(own) = name.strip_prefix("covey-")
            && !NEEDED.iter().any(|(needed, _)| *needed == own)
        {
            findings.push(at(format!(
                "{name} is compiled for make run: make the dependency optional and a feature of crates/cli, or \
                 say in crates/house/src/quick.rs what make run needs it for"
            )));
        }
    }
    for (needed, _) in NEEDED {
        if !names.contains(&format!("covey-{needed}").as_str()) {
            findings.push(at(format!("covey-{needed} is no longer compiled for make run: remove its row")));
        }
    }
    if names.len() > MOST {
        findings.push(at(format!(
            "{} crates are compiled for make run, more than {MOST}: find the dependency that brings the new ones",
            names.len()
        )));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed() -> String {
        NEEDED.iter().map(|(name, _)| format!("covey-{name} v0.2.0 (/x)\n")).collect()
    }

    #[test]
    fn what_is_needed_passes() {
        assert_eq!(check(&(needed() + "libc v0.2.1\nlibc v0.2.1\n")), []);
    }

    #[test]
    fn what_is_not_needed_is_found() {
        let found = |more: &str| check(&(needed() + more));
        assert!(found("covey-csi v0.2.0\n")[0].message.contains("say in crates/house"));
        assert!(found("tonic v0.14.0\n")[0].message.contains("the part csi"));
        let many: String = (0..MOST).map(|n| format!("library-{n} v1\n")).collect();
        assert!(found(&many)[0].message.contains("more than"));
        let fewer = needed().replace("covey-tree v0.2.0 (/x)\n", "");
        assert!(check(&fewer)[0].message.contains("remove its row"));
    }
}
