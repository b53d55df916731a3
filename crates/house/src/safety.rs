//! Every `unsafe` says why it is sound: in a comment with `SAFETY:` right above it, or in the section `#
//! Safety` of an unsafe function's documentation, which lists the duties of its callers.

use crate::Finding;
use crate::source::Source;

/// Checks one source, tests included.
pub fn check(source: &Source) -> Vec<Finding> {
    let lines: Vec<(&str, &str)> = source.text.lines().zip(source.code.lines()).collect();
    let mut findings = Vec::new();
    for at in source.find("unsafe") {
        let rest = source.code[at + "unsafe".len()..].trim_start();
        let opens = ["{", "impl", "fn ", "extern", "trait"].iter().any(|form| rest.starts_with(form));
        let is_type = rest.starts_with("extern")
            && rest.split(['{', ';']).next().is_some_and(|head| head.contains("fn("));
        let line = source.line_of(at);
        if opens && !is_type && !explained(&lines, line - 1) {
            let message = "unsafe without a `// SAFETY:` comment right above it that says why it is sound";
            findings.push(Finding::new(&source.path, line, message));
        }
    }
    findings
}

/// Whether the statement of line `index` has a `SAFETY:` comment, on that line or right above.
fn explained(lines: &[(&str, &str)], index: usize) -> bool {
    let says = |index: usize| {
        let (text, code) = lines[index];
        let mentioned = text.find("SAFETY:").or_else(|| text.find("# Safety"));
        // It must be in a comment that ends the line. The mask is blank from there on.
        mentioned.is_some_and(|at| code.get(at..).is_some_and(|rest| rest.trim().is_empty()))
    };
    if says(index) {
        return true;
    }
    for above in (0..index).rev() {
        if says(above) {
            return true;
        }
        let (text, code) = (lines[above].0.trim(), lines[above].1.trim());
        let comment = code.is_empty() && !text.is_empty();
        let attribute = code.starts_with("#[") || code.starts_with("#![");
        let same_statement = !code.is_empty() && !code.ends_with([';', '{', '}', ',']);
        if !(comment || attribute || same_statement) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(code: &str) -> usize {
        check(&Source::new("crates/fuse/src/a.rs", code)).len()
    }

    #[test]
    fn an_unsafe_without_a_safety_comment_is_found() {
        for code in [
            "fn a() {\n    unsafe { f() }\n}\n",
            "unsafe impl Send for A {}\n",
            "unsafe fn a() {}\n",
            "unsafe extern \"C\" {\n    fn a();\n}\n",
            "// SAFETY: far away\nfn b() {}\n\nfn a() {\n    unsafe { f() }\n}\n",
            "fn a() {\n    // SAFETY: the first only\n    unsafe { f() };\n    unsafe { g() };\n}\n",
            "fn a() {\n    let x = \"SAFETY: no comment\";\n    unsafe { f() };\n}\n",
        ] {
            assert_eq!(findings(code), 1, "{code}");
        }
    }

    #[test]
    fn a_safety_comment_is_seen() {
        for code in [
            "// SAFETY: because\nunsafe impl Send for A {}\n",
            "fn a() {\n    // SAFETY: a long reason\n    // on two lines\n    #[allow(x)]\n    let x = unsafe { f() };\n}\n",
            "fn a() {\n    // SAFETY: because\n    let x: u8 =\n        unsafe { f() };\n}\n",
            "/// Does.\n///\n/// # Safety\n/// The caller holds the lock.\nunsafe fn a() {}\n",
            "type F = unsafe extern \"C\" fn(u8) -> u8;\n",
            "#[unsafe(no_mangle)]\nfn a() {}\n",
        ] {
            assert_eq!(findings(code), 0, "{code}");
        }
    }
}
