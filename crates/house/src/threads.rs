//! Every thread of the product is in the table of ARCHITECTURE.md, with its number.
//!
//! A thread or a pool that nobody lists has a bound that nobody has judged. So a name that production code
//! gives to a thread must be in the first column of the table, and a name in that column must be given to a
//! thread. In the table, `N` stands for a number at the end of a name.

use crate::Finding;
use crate::source::Source;

/// The document with the table, and the section that the table is in.
const DOCUMENT: &str = "ARCHITECTURE.md";
const SECTION: &str = "## Threads";

/// What is directly in front of the name of a thread.
const STARTS: &[&str] =
    &["thread::spawn(", "thread::for_each(", "Pool::new(", "thread_name(", "runtime(", ".start("];

/// Checks the sources against the document, in both directions.
pub fn check(sources: &[Source], document: &str) -> Vec<Finding> {
    let listed = listed(document);
    let mut findings = Vec::new();
    let mut used = vec![false; listed.len()];
    for source in sources.iter().filter(|source| source.path.starts_with("crates/")) {
        for (at, name) in names(source) {
            match listed.iter().position(|(_, listed)| *listed == name) {
                Some(row) => used[row] = true,
                None => {
                    let message = format!("the thread {name} is not in the table of threads in {DOCUMENT}");
                    findings.push(Finding::new(&source.path, source.line_of(at), message));
                }
            }
        }
    }
    let unused = listed.iter().zip(used).filter(|(_, used)| !used);
    findings.extend(unused.map(|((line, name), _)| {
        Finding::new(DOCUMENT, *line, format!("no thread is called {name}: remove it from the table"))
    }));
    findings
}

/// The names in the first column of the table, with their lines.
fn listed(document: &str) -> Vec<(usize, String)> {
    let lines = document.lines().enumerate().skip_while(|(_, line)| *line != SECTION).skip(1);
    let rows =
        lines.take_while(|(_, line)| !line.starts_with("## ")).filter(|(_, line)| line.starts_with('|'));
    let cells = rows.filter_map(|(number, line)| Some((number + 1, line.split('|').nth(1)?)));
    let in_cell = |(number, cell): (usize, &str)| {
        let names: Vec<_> =
            cell.split('`').skip(1).step_by(2).map(|name| (number, name.to_owned())).collect();
        names
    };
    cells.flat_map(in_cell).collect()
}

/// The names that a file gives to threads outside of tests, as the table writes them.
fn names(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for start in STARTS {
        for at in source.find(start).filter(|&at| !source.in_test(at)) {
            let rest = source.text.get(at + start.len()..).unwrap_or("").trim_start();
            let rest = rest.strip_prefix("&format!(").unwrap_or(rest);
            // A name in a variable is a literal elsewhere.
            let Some((name, _)) = rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) else {
                continue;
            };
            let name = name.split_once('{').map_or(name.to_owned(), |(stem, _)| format!("{stem}N"));
            found.push((at, name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "`x`\n## Threads\n\n| name | how many |\n|---|---|\n| `a`, `b c` | one each |\n\
                         | `d-N` | `e` of them |\n\n## Other\n\n| `f` | |\n";

    fn found(code: &str) -> Vec<(String, usize)> {
        let findings = check(&[Source::new("crates/x/src/a.rs", code)], TABLE);
        findings.into_iter().map(|finding| (finding.path, finding.line)).collect()
    }

    #[test]
    fn a_thread_that_is_not_listed_is_found_and_a_row_without_a_thread() {
        let all = "base::thread::spawn(\"a\", f);\nlet p = runtime(\"b c\", 1);\n\
                   base::thread::spawn(&format!(\"d-{at}\"), f);\n";
        assert_eq!(found(all), []);
        let source = |line| ("crates/x/src/a.rs".to_owned(), line);
        for start in STARTS {
            assert_eq!(found(&format!("{all} {start}\n    \"f\", g)")), [source(4)], "{start}");
        }
        assert_eq!(found("base::thread::spawn(\"a\", f); base::thread::spawn(name, f);").len(), 2);
        let in_test =
            format!("{all}#[cfg(test)]\nmod tests {{ fn f() {{ base::thread::spawn(\"t\", f); }} }}\n");
        assert_eq!(found(&in_test), []);
    }
}
