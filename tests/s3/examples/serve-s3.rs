//! An S3 server for tests in other languages. Prints its address and the environment for its clients, one
//! `NAME=VALUE` a line, and serves until its standard input ends. The line `counts` prints its counters.

use std::io::BufRead;

use s3server::{BUCKET, Server, environment};

fn main() {
    let server = Server::start();
    println!("ENDPOINT={}", server.endpoint());
    println!("BUCKET={BUCKET}");
    for (name, value) in environment() {
        println!("{name}={value}");
    }
    println!("READY=1");
    for line in std::io::stdin().lock().lines() {
        if line.is_ok_and(|line| line == "counts") {
            let counts = server.counts();
            println!("{} {} {}", counts.get, counts.list, counts.sent);
        }
    }
}
