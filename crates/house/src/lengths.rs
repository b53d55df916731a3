//! Files and functions stay short.
//!
//! A file has up to 600 lines, a file of tests up to 1,000, and a function up to 70. Longer ones are listed
//! below with their length and may only shrink. No file may exceed 1,000 lines, not even a listed one. Split
//! a file by families of operations and a function by its steps. The tests of a long module go into a sibling
//! `tests.rs`.

use crate::Finding;
use crate::source::{Source, item_end};

/// The aim for a file, in lines.
pub const FILE_AIM: usize = 600;
/// The limit for a file, in lines.
pub const FILE_LIMIT: usize = 1_000;
/// The limit for a function, in lines, from its `fn` to its closing brace.
pub const FUNCTION_LIMIT: usize = 70;
/// How far below its row in a list a length may fall before the row must be lowered.
const SLACK: usize = 40;

/// Files longer than the aim: path, lines. Rows are lowered or removed, never added or raised.
pub const LONG_FILES: &[(&str, usize)] = &[];

/// Functions longer than the limit: path, name, lines. Rows are lowered or removed, never added or raised.
pub const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[];

/// Checks the files against [`FILE_AIM`], [`FILE_LIMIT`] and a list like [`LONG_FILES`].
pub fn check_files(sources: &[Source], list: &[(&str, usize)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let lines = source.text.lines().count();
        let row = list.iter().find(|(path, _)| *path == source.path).map(|(_, lines)| *lines);
        let aim = if source.is_test() { FILE_LIMIT } else { FILE_AIM };
        let message = match row {
            _ if lines > FILE_LIMIT => format!("{lines} lines; the limit is {FILE_LIMIT}: split it"),
            None if lines > aim => format!("{lines} lines; the aim is {aim}: split it"),
            Some(listed) if lines > listed => {
                format!("{lines} lines, {listed} are listed: the list only shrinks")
            }
            Some(listed) if lines + SLACK < listed || lines <= aim => {
                format!("{lines} lines, {listed} are listed: lower or remove its row in LONG_FILES")
            }
            _ => continue,
        };
        findings.push(Finding::new(&source.path, 0, message));
    }
    let gone = list.iter().filter(|(path, _)| !sources.iter().any(|source| source.path == *path));
    findings.extend(gone.map(|(path, _)| Finding::new(path, 0, "is gone: remove its row in LONG_FILES")));
    findings
}

/// Checks the functions against [`FUNCTION_LIMIT`] and a list like [`LONG_FUNCTIONS`].
pub fn check_functions(sources: &[Source], list: &[(&str, &str, usize)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut used = vec![false; list.len()];
    for source in sources {
        for function in functions(source).filter(|function| function.lines > FUNCTION_LIMIT) {
            let Function { name, line, lines } = function;
            let row = list.iter().position(|(path, listed, _)| *path == source.path && *listed == name);
            let message = match row.map(|row| (row, list[row].2)) {
                None => format!(
                    "fn {name} has {lines} lines; the limit is {FUNCTION_LIMIT}: split it by its steps"
                ),
                Some((row, listed)) => {
                    used[row] = true;
                    if lines <= listed {
                        continue;
                    }
                    format!("fn {name} has {lines} lines, {listed} are listed: the list only shrinks")
                }
            };
            findings.push(Finding::new(&source.path, line, message));
        }
    }
    let idle = list.iter().zip(used).filter(|(_, used)| !used);
    findings.extend(idle.map(|((path, name, _), _)| {
        Finding::new(path, 0, format!("fn {name} is short or gone: remove its row in LONG_FUNCTIONS"))
    }));
    findings
}

struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// The functions with a body.
fn functions(source: &Source) -> impl Iterator<Item = Function> + '_ {
    source.find("fn").filter_map(|at| {
        let code = &source.code;
        let rest = code.get(at + 2..)?.trim_start();
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let end = item_end(code, at);
        let has_body = code.get(..end)?.ends_with('}');
        let line = source.line_of(at);
        let lines = source.line_of(end) - line + 1;
        (!name.is_empty() && has_body).then_some(Function { name, line, lines })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, lines: usize) -> Source {
        Source::new(path, &"// a line\n".repeat(lines))
    }

    fn function(lines: usize) -> Source {
        let body = "    work();\n".repeat(lines - 2);
        Source::new(
            "crates/a/src/b.rs",
            &format!("//! x\n\nfn long(x: [u8; 4]) -> u8 {{\n{body}}}\nfn next() {{}}\n"),
        )
    }

    #[test]
    fn a_long_file_is_found() {
        assert!(check_files(&[file("a.rs", 600)], &[]).is_empty());
        assert_eq!(check_files(&[file("a.rs", 601)], &[]).len(), 1);
        assert!(check_files(&[file("a/tests.rs", 1_000)], &[]).is_empty());
        assert_eq!(check_files(&[file("a/tests.rs", 1_001)], &[]).len(), 1);
    }

    #[test]
    fn the_list_of_files_only_shrinks() {
        let findings = |lines, listed| check_files(&[file("a.rs", lines)], &[("a.rs", listed)]).len();
        assert_eq!(findings(700, 700), 0);
        assert_eq!(findings(701, 700), 1, "grown");
        assert_eq!(findings(650, 700), 1, "shrunk far below its row");
        assert_eq!(findings(600, 601), 1, "needs no row");
        assert_eq!(findings(1_001, 1_100), 1, "past the limit");
        assert_eq!(check_files(&[], &[("a.rs", 700)]).len(), 1, "gone");
    }

    #[test]
    fn a_long_function_is_found() {
        assert!(check_functions(&[function(70)], &[]).is_empty());
        let found = check_functions(&[function(71)], &[]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 3);
        assert!(found[0].message.contains("fn long has 71 lines"), "{}", found[0].message);
    }

    #[test]
    fn the_list_of_functions_only_shrinks() {
        let findings = |lines, listed| {
            check_functions(&[function(lines)], &[("crates/a/src/b.rs", "long", listed)]).len()
        };
        assert_eq!(findings(80, 80), 0);
        assert_eq!(findings(81, 80), 1, "grown");
        assert_eq!(findings(70, 80), 1, "needs no row");
    }

    #[test]
    fn declarations_and_pointers_are_no_functions() {
        let text = "trait T { fn a(&self); }\ntype F = fn(u8) -> u8;\nextern \"C\" { fn b(); }\n";
        let names: Vec<_> = functions(&Source::new("a.rs", text)).map(|function| function.name).collect();
        assert!(names.is_empty(), "{names:?}");
    }
}
