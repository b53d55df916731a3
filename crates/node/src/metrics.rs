//! Figures for Prometheus: a page of text at `http://ADDRESS:PORT/metrics`, off unless asked for.
//!
//! Each request renders the page anew. Its counters are kept in any case. Its histograms of durations are
//! measured while the page is served. [`api::metrics::METRICS`] lists all names. docs/METRICS.md explains
//! them, and a test compares the two.

mod http;
mod page;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

use api::error::{Failure, Result};
use fuse::Session;

use crate::log;
use crate::mount::{Mount, Slot};

/// A listening socket that does not answer yet.
#[derive(Debug)]
pub struct Page(TcpListener);

/// Opens the socket before anything is mounted, so that a wrong or used address is reported early.
///
/// # Errors
/// The address cannot be used. An address that other machines can reach is refused unless `public`.
pub fn bind(address: &str, public: bool) -> Result<Page> {
    let example = "name one like 127.0.0.1:9464";
    let found: Vec<SocketAddr> = address
        .to_socket_addrs()
        .map_err(|error| {
            Failure::usage(format!("{address} is no address for metrics"))
                .why(api::error::plain(&error))
                .next(example)
        })?
        .collect();
    if found.is_empty() {
        return Err(Failure::usage(format!("{address} is no address for metrics")).next(example));
    }
    if !public && !found.iter().all(|address| address.ip().is_loopback()) {
        return Err(Failure::usage(format!("other machines could read the metrics at {address}"))
            .why("they tell what is done on the volume, to everybody who asks")
            .next(example)
            .next("or say that this is wanted: --metrics-public"));
    }
    let listener = base::lock::bind(|| TcpListener::bind(&found[..])).map_err(|error| {
        Failure::io(format!("cannot serve metrics at {address}"), &error)
            .next("choose another port, or 0 for any")
    })?;
    Ok(Page(listener))
}

/// The page at this moment. It contains durations only while they are measured: while a page is served or a
/// command watches.
pub fn text(node: &Mount, session: &Session) -> String {
    page::render(node, session)
}

impl Page {
    /// Answers from now on, in a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn serve(self, mount: Arc<Slot>, session: Arc<Session>) -> Result<()> {
        let hold = session.watch().measure();
        self.serve_page(move || {
            let _hold = &hold;
            page::render(&mount.get(), &session)
        })
    }

    /// Answers with the given page from now on, in a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn serve_page(self, page: impl Fn() -> String + Send + 'static) -> Result<()> {
        let cannot = |error| Failure::io("cannot serve metrics", &error);
        let address = self.0.local_addr().map_err(cannot)?;
        base::thread::spawn("covey-metrics", move || http::serve(&self.0, Box::new(page))).map_err(cannot)?;
        log::line(&format!("metrics at http://{address}/metrics"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served_unless_more_is_said() {
        for bad in ["", "9464", "nowhere", "127.0.0.1", "127.0.0.1:99999", "0.0.0.0:0", "[::]:0"] {
            let failure = bind(bad, false).unwrap_err();
            assert_eq!((failure.status, failure.next.is_empty()), (2, false), "{bad}: {failure}");
        }
        let page = bind("127.0.0.1:0", false).unwrap();
        let taken = bind(&page.0.local_addr().unwrap().to_string(), false).unwrap_err();
        assert!(taken.what.contains("cannot serve metrics") && taken.status == 1, "{taken}");
        assert!(bind("0.0.0.0:0", true).is_ok());
    }
}
