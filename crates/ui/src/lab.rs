//! A JupyterLab of this machine, shown in a frame of the page. It decides itself who may use it. Everybody
//! on this machine can read what the dashboard says, so the dashboard does not get its token. JupyterLab
//! asks the user for it.

use std::net::{IpAddr, SocketAddr};

use api::error::{Failure, Result};

/// A JupyterLab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lab {
    /// The address of the JupyterLab, without its token.
    pub url: String,
    /// What the page may load in a frame: `http://127.0.0.1:8888`.
    pub origin: String,
}

impl Lab {
    /// From the address that `make lab` prints, without the token.
    ///
    /// # Errors
    /// It is no address of this machine, or of another kind, or it holds a token.
    pub fn new(url: &str) -> Result<Lab> {
        let refused = |why: &str| {
            Failure::usage(format!("{url:?} is no address of a JupyterLab on this machine"))
                .why(why)
                .next("write the address that make lab prints, up to its token: http://127.0.0.1:8888/lab")
        };
        // It becomes part of a header, and of the page.
        if !url.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'<>\\;,".contains(&byte)) {
            return Err(refused("it has letters that an address does not have"));
        }
        let found = ["http", "https"]
            .into_iter()
            .find_map(|scheme| Some((scheme, url.strip_prefix(scheme)?.strip_prefix("://")?)));
        let (scheme, rest) = found.ok_or_else(|| refused("it does not begin with http:// or https://"))?;
        if rest.contains(['?', '#', '@']) {
            return Err(refused("everybody on this machine could read its token; JupyterLab asks for it"));
        }
        let host = rest.split('/').next().unwrap_or("");
        match is_loopback(host) {
            true => Ok(Lab { url: url.to_owned(), origin: format!("{scheme}://{host}") }),
            false => Err(refused("only addresses of this machine are shown: 127.0.0.1, [::1] or localhost")),
        }
    }
}

/// Whether `HOST` or `HOST:PORT` is this machine.
fn is_loopback(host: &str) -> bool {
    if let Ok(address) = host.parse::<SocketAddr>() {
        return address.ip().is_loopback();
    }
    let (name, port) = host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).unwrap_or((host, "80"));
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    port.parse::<u16>().is_ok()
        && (name == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_machine_are_shown() {
        for (url, origin) in [
            ("http://127.0.0.1:8888/lab", "http://127.0.0.1:8888"),
            ("http://localhost:8888/lab", "http://localhost:8888"),
            ("https://[::1]:8888", "https://[::1]:8888"),
            ("http://127.0.0.1", "http://127.0.0.1"),
        ] {
            assert_eq!(Lab::new(url).unwrap().origin, origin);
        }
        for url in [
            "",
            "127.0.0.1:8888",
            "ftp://127.0.0.1/",
            "javascript:alert(1)",
            "http://",
            "http://10.0.0.1:8888/",
            "http://127.0.0.1:8888/lab?token=abc",
            "http://user:word@127.0.0.1:8888/lab",
            "http://evil.example/?127.0.0.1",
            "http://127.0.0.1@evil.example/",
            "http://127.0.0.1:80@evil.example/",
            "http://localhost.evil.example",
            "http://127.0.0.1:99999/",
            "http://127.0.0.1; script-src *",
            "http://127.0.0.1:8888/\u{e4}",
            "http://127.0.0.1\r\nX: y",
        ] {
            assert_eq!(Lab::new(url).unwrap_err().code, "usage", "{url}");
        }
    }
}
