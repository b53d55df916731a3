//! Which requests are answered. A web page of another site must not read figures through the browser of a
//! user (by a name that it resolves to this machine), nor change anything.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, Method, StatusCode, header};
use subtle::ConstantTimeEq;

/// What the guard knows.
pub struct Guard {
    address: SocketAddr,
    token: Option<String>,
}

impl Guard {
    /// For a dashboard at this address.
    pub fn new(address: SocketAddr, token: Option<String>) -> Guard {
        Guard { address, token }
    }

    /// Whether requests that change something can be allowed at all.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether a request shows the token.
    pub fn is_known(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).and_then(|given| given.to_str().ok());
        let given = given.and_then(|given| given.strip_prefix("Bearer ")).unwrap_or("");
        self.token.as_ref().is_some_and(|token| bool::from(given.as_bytes().ct_eq(token.as_bytes())))
    }

    /// Whether a request is answered. If not, the status and a line that says why.
    pub fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        if !self.is_own(host) {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "ask by the address that the dashboard listens at",
            ));
        }
        // A browser lets a page read the answers of its own site only, but WebSockets of every site.
        let reads = method == Method::GET || method == Method::HEAD;
        if reads && !headers.contains_key(header::UPGRADE) {
            return Ok(());
        }
        let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or("?"));
        if origin.is_some_and(|origin| origin != format!("http://{host}")) {
            return Err((StatusCode::FORBIDDEN, "this request comes from a page of another site"));
        }
        if reads {
            return Ok(());
        }
        if !self.has_token() {
            return Err((
                StatusCode::FORBIDDEN,
                "this dashboard has no token: start it with --ui-token FILE",
            ));
        }
        match self.is_known(headers) {
            true => Ok(()),
            false => Err((StatusCode::UNAUTHORIZED, "send the token: Authorization: Bearer TOKEN")),
        }
    }

    /// Whether a Host header names this machine: by an address, or as localhost. A name would do if it were
    /// this machine's, but a hostile one could resolve to it, too.
    fn is_own(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port),
            _ => (host, "80"),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let is_here = name == "localhost" || name.parse::<IpAddr>().is_ok();
        // Another port: a tunnel.
        is_here && port.parse::<u16>().is_ok() && (!self.address.ip().is_loopback() || is_loopback(name))
    }
}

fn is_loopback(name: &str) -> bool {
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: Method, headers: &[(header::HeaderName, &str)]) -> Option<u16> {
        let guard = Guard::new("127.0.0.1:9879".parse().unwrap(), Some("a-token-of-sixteen".into()));
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, value)| drop(map.insert(name, value.parse().unwrap())));
        guard.admit(&method, &map).err().map(|(status, _)| status.as_u16())
    }

    #[test]
    fn a_page_of_another_site_gets_nothing() {
        for host in ["127.0.0.1:9879", "localhost:9879", "localhost", "[::1]:9879", "127.0.0.1:1234"] {
            assert_eq!(asked(Method::GET, &[(header::HOST, host)]), None, "{host}");
        }
        for host in
            ["evil.example:9879", "", "10.0.0.1:9879", "localhost.evil.example", "127.0.0.1:x", "a:b:c"]
        {
            assert_eq!(asked(Method::GET, &[(header::HOST, host)]), Some(421), "{host}");
        }
    }

    #[test]
    fn a_websocket_of_another_site_is_refused() {
        let host = (header::HOST, "127.0.0.1:9879");
        let upgrade = (header::UPGRADE, "websocket");
        assert_eq!(asked(Method::GET, &[host.clone(), upgrade.clone()]), None);
        let own = (header::ORIGIN, "http://127.0.0.1:9879");
        assert_eq!(asked(Method::GET, &[host.clone(), upgrade.clone(), own]), None);
        for other in ["http://evil.example", "null", "http://localhost:9879", "https://127.0.0.1:9879"] {
            let origin = (header::ORIGIN, other);
            assert_eq!(asked(Method::GET, &[host.clone(), upgrade.clone(), origin]), Some(403), "{other}");
        }
    }

    #[test]
    fn changes_need_the_token_and_the_own_page() {
        let host = (header::HOST, "127.0.0.1:9879");
        let right = (header::AUTHORIZATION, "Bearer a-token-of-sixteen");
        let own = (header::ORIGIN, "http://127.0.0.1:9879");
        assert_eq!(asked(Method::POST, &[host.clone(), right.clone()]), None);
        assert_eq!(asked(Method::POST, &[host.clone(), right.clone(), own]), None);
        let other = (header::ORIGIN, "http://evil.example");
        assert_eq!(asked(Method::POST, &[host.clone(), right, other]), Some(403));
        for wrong in ["Bearer wrong", "Bearer ", "a-token-of-sixteen"] {
            assert_eq!(asked(Method::POST, &[host.clone(), (header::AUTHORIZATION, wrong)]), Some(401));
        }
        assert_eq!(asked(Method::DELETE, std::slice::from_ref(&host)), Some(401));
        let guard = Guard::new("127.0.0.1:9879".parse().unwrap(), None);
        let headers = HeaderMap::from_iter([(host.0, host.1.parse().unwrap())]);
        assert_eq!(guard.admit(&Method::POST, &headers).unwrap_err().0.as_u16(), 403);
    }
}
