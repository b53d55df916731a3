//! The files of the repository as the rules see them, read once.

use crate::source::Source;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// Every text file of the repository.
pub struct Tree {
    /// The repository's folder.
    pub root: PathBuf,
    /// Path (relative, with `/`) to text. Files that are not UTF-8 are left out.
    pub texts: BTreeMap<String, String>,
    /// The Rust files among them.
    pub sources: Vec<Source>,
}

impl Tree {
    /// Reads the repository that contains this crate: the files that git tracks or would add, or all files
    /// without git.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn load() -> io::Result<Tree> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        let paths = match listed_by_git(&root) {
            Some(paths) => paths,
            None => walked(&root)?,
        };
        let mut texts = BTreeMap::new();
        for path in paths {
            let file = root.join(&path);
            // It is deleted but the deletion is not committed, or it is a dangling link: there is nothing to
            // read.
            if !file.is_file() {
                continue;
            }
            if let Ok(text) = String::from_utf8(fs::read(file)?) {
                texts.insert(path, text);
            }
        }
        let sources = sources_of(&texts);
        Ok(Tree { root, texts, sources })
    }

    /// The names of the folders below `crates/`.
    pub fn crates(&self) -> Vec<&str> {
        self.texts
            .keys()
            .filter_map(|path| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
            .filter(|name| !name.contains('/'))
            .collect()
    }
}

/// Masks the Rust files and marks those that another file declares for tests only.
fn sources_of(texts: &BTreeMap<String, String>) -> Vec<Source> {
    let rust = texts.iter().filter(|(path, _)| path.ends_with(".rs"));
    let mut sources: Vec<Source> = rust.map(|(path, text)| Source::new(path, text)).collect();
    let modules: Vec<String> = sources.iter().flat_map(Source::test_modules).collect();
    for source in &mut sources {
        let stem = source.path.trim_end_matches(".rs").trim_end_matches("/mod");
        let declared = |module: &String| stem == module || stem.starts_with(&format!("{module}/"));
        if modules.iter().any(declared) {
            source.set_test();
        }
    }
    sources
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let listed = output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())?;
    let paths: Vec<String> = listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    (!paths.is_empty()).then_some(paths)
}

fn walked(root: &Path) -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let hidden = path.file_name().is_some_and(|name| name == ".git" || name == "target");
            if path.is_dir() && !hidden {
                folders.push(path);
            } else if path.is_file() {
                let relative = path.strip_prefix(root).map_err(io::Error::other)?;
                paths.push(relative.to_string_lossy().into_owned());
            }
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_and_without_git_the_same_manifests_are_seen() {
        let tree = Tree::load().unwrap();
        let walked = walked(&tree.root).unwrap();
        for name in tree.crates() {
            assert!(walked.contains(&format!("crates/{name}/Cargo.toml")), "{name}");
        }
        assert!(tree.crates().contains(&"house"));
    }

    #[test]
    fn a_module_declared_for_tests_is_a_test_in_every_file_of_it() {
        let texts = BTreeMap::from([
            ("crates/a/src/lib.rs".to_owned(), "#[cfg(test)]\nmod model;\nmod real;\n".to_owned()),
            ("crates/a/src/model.rs".to_owned(), String::new()),
            ("crates/a/src/model/deep.rs".to_owned(), String::new()),
            ("crates/a/src/real.rs".to_owned(), "fn a() {}".to_owned()),
        ]);
        let tests: Vec<_> =
            sources_of(&texts).into_iter().filter(Source::is_test).map(|source| source.path).collect();
        assert_eq!(tests, ["crates/a/src/model.rs", "crates/a/src/model/deep.rs"]);
    }
}
