//! Values of the environment that become a part of a request: they are one line.

use super::environment::Environment;
use super::fault::Fault;

impl Environment {
    /// A variable whose value becomes a part of a request.
    ///
    /// # Errors
    /// It has a control character inside.
    pub(crate) fn line(&self, name: &str) -> Result<Option<&str>, Fault> {
        let from = format!("{name} of the environment");
        self.get(name).map(|value| one_line(value, &from)).transpose()
    }

    /// The variables whose names begin with this, as [`Environment::line`] reads them.
    ///
    /// # Errors
    /// One has a control character inside.
    pub(crate) fn lines(&self, start: &str) -> Result<Vec<(&str, &str)>, Fault> {
        let mut all = Vec::new();
        for name in self.names(start) {
            // A key of Google is JSON, of many lines.
            let is_document = name == "GOOGLE_SERVICE_ACCOUNT_KEY";
            let value = if is_document { self.get(name) } else { self.line(name)? };
            all.extend(value.map(|value| (name, value)));
        }
        Ok(all)
    }
}

/// A key or another value that becomes a part of a request, without white space at its ends.
///
/// # Errors
/// It has a control character inside. `from` says where it came from; the value is not shown.
pub(crate) fn one_line<'t>(value: &'t str, from: &str) -> Result<&'t str, Fault> {
    let refused = |error: base::secret::NotALine| Fault::no_keys(error.to_string(), "correct it there");
    base::secret::line(value, &from).map_err(refused)
}
