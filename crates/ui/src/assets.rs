//! The page. `make ui-assets` builds it from `web/`; nothing is loaded from elsewhere.

use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

const FILES: [(&str, &str, &[u8]); 3] = [
    ("index.html", "text/html; charset=utf-8", include_bytes!("../web/index.html")),
    ("app.js", "text/javascript; charset=utf-8", include_bytes!("../assets/app.js")),
    ("app.css", "text/css; charset=utf-8", include_bytes!("../assets/app.css")),
];

/// Nothing from another place, no inline script. Charts set styles of their own elements. A JupyterLab that
/// was named at the start may be in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The file of this name, or 404. `lab` is the origin of the JupyterLab.
pub fn file(name: &str, lab: Option<&str>) -> Response {
    let name = if name.is_empty() { "index.html" } else { name };
    let Some((_, kind, bytes)) = FILES.iter().find(|(file, ..)| *file == name) else {
        return (StatusCode::NOT_FOUND, "there is no such page\n").into_response();
    };
    let policy = lab.map_or(POLICY.to_owned(), |lab| format!("{POLICY}; frame-src {lab}"));
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, &policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, *bytes).into_response()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// `make ui-assets` recorded the sums of all sources and of what it made of them.
    #[test]
    fn assets_are_those_of_their_sources() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let record = fs::read_to_string(folder.join("assets/SUMS")).unwrap();
        for line in record.lines() {
            let (sum, path) = line.split_once("  ").unwrap();
            let bytes = fs::read(folder.join(path)).unwrap();
            let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
            let found: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(sum, found, "{path} changed: run `make ui-assets`");
        }
        let files = |name: &str| fs::read_dir(folder.join(name)).unwrap().count();
        assert_eq!(record.lines().count(), files("web") + files("assets") - 1, "a file has no sum");
    }
}
