//! `covey watch served`: requests of other machines to a port of this one.

use std::cell::RefCell;

use api::error::Result;
use api::text::count;
use serde::Serialize;
use watch::Cost;
use watch::driver::{Client, DriverWatch, Mode, Target, Totals};

use super::{Rhythm, cost_text, failure};
use crate::table::Table;
use crate::term::Term;

/// Shows requests of other machines to a port of this one, for each client
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey watch served eth0 --port 9878       who uses this node's S3 endpoint\n\n\
    The program sees packets before the network stack does (XDP). Requests from this machine do not come that way. Only\n\
    plain HTTP/1.1 can be read, and only a request line at the beginning of a packet. An interface takes one such program."
)]
pub struct Args {
    /// The interface on which the requests arrive
    interface: String,
    /// The port of this machine
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    #[command(flatten)]
    rhythm: Rhythm,
}

/// One table.
#[derive(Debug, Serialize)]
struct Shown {
    mode: Mode,
    totals: Totals,
    clients: Vec<Client>,
    costs: Vec<Cost>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let Args { interface, port, rhythm } = args;
    let target = Target { interface: interface.clone(), served_port: *port, asked_port: 0 };
    let watch = RefCell::new(DriverWatch::attach(&target).map_err(failure)?);
    let _measured = watch::object::measure().map_err(failure)?;
    let step = |left| {
        std::thread::sleep(left);
        Ok(())
    };
    let show = || {
        let watch = watch.borrow();
        let mut clients = watch.clients().map_err(failure)?;
        clients.truncate(rhythm.top);
        let totals = watch.totals().map_err(failure)?;
        let shown = Shown { mode: watch.mode(), totals, clients, costs: watch.costs() };
        term.line(Some(&shown), || text(&shown));
        Ok(())
    };
    rhythm.run(step, show)?;
    Ok(0)
}

fn text(shown: &Shown) -> String {
    let mut table = Table::new(&["requests ", "GET ", "PUT ", "client"]);
    for client in &shown.clients {
        let cells = [client.requests, client.get, client.put].map(count);
        table.row(cells.into_iter().chain([client.address.to_string()]).collect());
    }
    let Totals { packets, requests, get, put, other, .. } = shown.totals;
    let by = match shown.mode {
        Mode::Driver => "in the driver",
        Mode::Kernel => "by the kernel, before its network stack",
    };
    let sums = format!(
        "requests {} ({} GET, {} PUT, {} other) in {} packets, counted {by}\n",
        count(requests),
        count(get),
        count(put),
        count(other),
        count(packets)
    );
    table.text() + &sums + &cost_text(&shown.costs)
}
