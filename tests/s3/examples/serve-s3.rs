//! An S3 server for tests in other languages. Prints its address, the folder of its bucket, and the
//! environment for its clients, one `NAME=VALUE` a line, and serves until its standard input ends. The line
//! `counts` prints its counters, `gets` the GETs of each key: `KEY<TAB>GETS<TAB>BYTES`, and an empty line at
//! the end.
//!
//! `serve-s3 --delay-ms 20` answers each request so much later, as a store in another building does.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::io::BufRead;
use std::time::Duration;

use s3server::{BUCKET, Fault, Proxy, Rule, Server, environment};

/// The argument of `--delay-ms`.
fn delay() -> Option<Duration> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [] => None,
        [option, ms] if option == "--delay-ms" => {
            Some(Duration::from_millis(ms.parse().expect("--delay-ms takes a number")))
        }
        _ => panic!("serve-s3 takes --delay-ms NUMBER, or nothing"),
    }
}

fn main() {
    let server = Server::start();
    let proxy = delay().map(|delay| {
        let proxy = Proxy::start(server.address(), 1);
        proxy.add(Rule::new(Fault::Wait(delay)));
        proxy
    });
    println!("ENDPOINT={}", proxy.as_ref().map_or_else(|| server.endpoint(), Proxy::endpoint));
    println!("BUCKET={BUCKET}");
    println!("FOLDER={}", server.folder().display());
    for (name, value) in environment() {
        println!("{name}={value}");
    }
    println!("READY=1");
    for line in std::io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("counts") => {
                let counts = server.counts();
                println!("{} {} {}", counts.get, counts.list, counts.sent);
            }
            Ok("gets") => {
                server.got().iter().for_each(|(key, got)| println!("{key}\t{}\t{}", got.gets, got.bytes));
                println!();
            }
            _ => {}
        }
    }
}
