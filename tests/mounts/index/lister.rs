//! A store that lists a million keys as fast as they can be written, one page after the other. A server over
//! a folder takes longer for each page the more files there are.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Keys on a page, as in S3.
const PAGE: u64 = 1000;

/// The store. It serves until the process ends.
pub struct Lister {
    /// Its address as an endpoint.
    pub endpoint: String,
    pages: Arc<AtomicU64>,
}

impl Lister {
    /// Lists `count` keys. Each page takes at least `each`.
    pub fn start(count: u64, each: Duration) -> Lister {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let pages = Arc::new(AtomicU64::new(0));
        let counter = pages.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let counter = counter.clone();
                std::thread::spawn(move || serve(stream, count, each, &counter));
            }
        });
        Lister { endpoint, pages }
    }

    /// How many pages it has sent.
    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::SeqCst)
    }
}

/// The key of this number, in order: 100 folders of equal size.
pub fn key(number: u64, count: u64) -> String {
    format!("set/part-{:03}/object-{number:09}.parquet", number * 100 / count)
}

fn serve(stream: TcpStream, count: u64, each: Duration, pages: &AtomicU64) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut header = String::new();
        while reader.read_line(&mut header).unwrap_or(0) > 2 {
            header.clear();
        }
        let token = line.split("continuation-token=").nth(1);
        let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
        let from = token.map_or(0, |token| digits(token).parse().unwrap());
        std::thread::sleep(each);
        let body = page(from, count);
        pages.fetch_add(1, Ordering::SeqCst);
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).is_err() {
            return;
        }
    }
}

fn page(from: u64, count: u64) -> String {
    let to = (from + PAGE).min(count);
    let mut body =
        format!("<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>{}</IsTruncated>", to < count);
    for number in from..to {
        body += &format!(
            "<Contents><Key>{}</Key><LastModified>2026-01-02T03:04:05.678Z</LastModified>\
             <ETag>&quot;{:032x}&quot;</ETag><Size>{}</Size></Contents>",
            key(number, count),
            u128::from(number) * 0x9E37_79B9_7F4A_7C15_F39C,
            1000 + number % 5_000_000
        );
    }
    if to < count {
        body += &format!("<NextContinuationToken>{to}</NextContinuationToken>");
    }
    body + "</ListBucketResult>"
}
