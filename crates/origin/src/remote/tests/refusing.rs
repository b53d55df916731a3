//! Refusals of single objects, and errors that pass.

use super::*;

fn refuse(proxy: &Proxy, method: Method, id: &BlobId, status: u16, code: &str) {
    let answer = Fault::Answer(Canned::Error(status, code.to_owned()));
    proxy.add(Rule::new(answer).only(method).path(&id.to_string()));
}

/// Three refused objects in a row made reads of all others fail without a request.
#[test]
fn regression_refused_objects_leave_the_others_readable() {
    let codes = [
        (403, "AccessDenied"),
        (403, "InvalidObjectState"),
        (400, "KMS.DisabledException"),
        // A store may say that of one object. The marker shows that the keys are right.
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
    ];
    let (proxy, remote, ..) = behind(301, short());
    let blobs: Vec<Vec<u8>> = (0..10).map(|n| noise(200_000, 900 + n)).collect();
    let ids: Vec<BlobId> = blobs.iter().map(|bytes| put(&remote, bytes)).collect();
    for (status, code) in codes {
        ids[..5].iter().for_each(|id| refuse(&proxy, Method::GET, id, status, code));
        for n in 5..10 {
            for id in &ids[..5] {
                let error = remote.fetch(id).unwrap_err();
                assert!(matches!(error, BlobError::Refused(_)), "{code}: {error}");
            }
            assert!(remote.fetch(&ids[n]).unwrap().1 == blobs[n], "{code}");
            remote.recent.forget(&ids[n]);
            assert!(remote.fetch_part(&ids[n], 100_000, 10).is_ok(), "{code}");
            assert_eq!(remote.record("none").unwrap(), None, "{code}");
        }
        let all = remote.refusals();
        assert!(all.iter().all(|one| one.what() == "reads" && one.why.contains("5 objects")), "{all:?}");
        proxy.faults().clear();
        remote.engine.refusals.renewed();
    }
}

/// A refused object is asked for now and then, and served when the store serves it again.
#[test]
fn a_refused_object_is_asked_for_with_pauses() {
    let (proxy, remote, id, bytes) = behind(302, short());
    refuse(&proxy, Method::GET, &id, 403, "AccessDenied");
    let (before, begin) = (remote.stats().requests(Kind::Get), Instant::now());
    (0..50).for_each(|_| assert!(matches!(remote.fetch(&id), Err(BlobError::Refused(_)))));
    let asked = remote.stats().requests(Kind::Get) - before;
    assert!(asked <= 1 + begin.elapsed().as_secs(), "{asked} requests for 50 reads");
    let refused = remote.refusals();
    assert_eq!((refused.len(), refused[0].what(), refused[0].cause()), (1, "reads", "rights"));
    assert!(refused[0].why.contains(&id.to_string()), "{refused:?}");
    proxy.faults().clear();
    let begin = Instant::now();
    while remote.fetch(&id).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(120), "the store is still not asked again");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(remote.fetch(&id).unwrap().1 == bytes && remote.refusals().is_empty());
}

/// One refused DELETE of some kept all others from being sent.
#[test]
fn regression_a_refused_delete_leaves_the_others() {
    let (proxy, remote, ..) = behind(303, short());
    let ids: Vec<BlobId> = (0..40).map(|n| put(&remote, &noise(50, 950 + n))).collect();
    proxy.add(Rule::new(Fault::Answer(Canned::NotImplemented)).only(Method::POST));
    ids[..3].iter().for_each(|id| refuse(&proxy, Method::DELETE, id, 403, "AccessDenied"));
    assert!(matches!(remote.remove_many(&ids, BootTime::NEVER), Err(BlobError::Refused(_))));
    let left: Vec<bool> = ids.iter().map(|id| remote.size(id).unwrap().is_some()).collect();
    assert_eq!(left, (0..40).map(|n| n < 3).collect::<Vec<bool>>());
}

/// Statuses of what stands before a store, and throttling with another status, were EIO at once.
#[test]
fn regression_errors_that_pass_are_waited_out() {
    let statuses = [408, 425, 429, 499, 500, 502, 503, 504, 505, 509, 520, 522, 524, 529, 530, 598];
    let of_status = statuses.map(|status| (status, "x"));
    let codes = ["Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestTimeout", "SlowDown"];
    let of_code = codes.map(|code| (400, code));
    let limits = Limits { hedge: false, ..deadlines(Duration::from_secs(60)) };
    let (proxy, remote, id, bytes) = behind(304, limits);
    for (status, code) in of_status.into_iter().chain(of_code).chain([(403, "RequestThrottled")]) {
        let answer = Fault::Answer(Canned::Error(status, code.to_owned()));
        proxy.add(Rule::new(answer).times(2));
        assert!(remote.fetch(&id).unwrap().1 == bytes, "{status} {code}");
        proxy.faults().clear();
    }
    assert!(remote.refusals().is_empty());
    for status in [503, 520, 524] {
        proxy.add(Rule::new(Fault::Status(status)).times(2));
        assert_eq!(put(&remote, &bytes), id, "{status}");
        assert_eq!(remote.size(&id).unwrap(), Some(bytes.len() as u64), "{status}");
        proxy.faults().clear();
    }
}

/// The answer to a HEAD does not say why it is refused, so renewed keys were not looked for.
#[test]
fn the_reason_of_a_refused_head_is_found() {
    let (proxy, remote, id, bytes) = behind(305, short());
    let expired = || Fault::Answer(Canned::ExpiredToken);
    proxy.add(Rule::new(expired()).only(Method::HEAD));
    assert_eq!(remote.size(&id).unwrap(), Some(bytes.len() as u64));
    proxy.add(Rule::new(expired()));
    let error = remote.size(&id).unwrap_err().to_string();
    assert!(error.contains("has expired"), "{error}");
}

/// Gateways leave out Content-Length of what they pass on in chunks: nothing could be read.
#[test]
fn regression_answers_without_a_length_are_read() {
    let (proxy, remote, id, bytes) = behind(306, unhedged());
    proxy.add(Rule::new(Fault::Chunked));
    assert!(remote.fetch(&id).unwrap().1 == bytes);
    for offset in [0, 200_000] {
        remote.recent.forget(&id);
        let part = remote.fetch_part(&id, offset, 10).unwrap();
        let from = (offset - part.offset) as usize;
        assert!(part.bytes[from..from + 10] == bytes[offset as usize..offset as usize + 10]);
    }
    assert_eq!(remote.size(&id).unwrap(), Some(bytes.len() as u64));
    remote.put_record("r", b"kept").unwrap();
    assert_eq!(remote.record("r").unwrap().unwrap(), b"kept");
    assert_eq!(remote.records("").unwrap(), ["r"]);
    remote.remove(&id).unwrap();
    assert_eq!(remote.size(&id).unwrap(), None);
}

/// Requests on connections that had died without a word took 10 to 20 seconds.
#[test]
fn regression_a_dead_connection_costs_a_quick_retry() {
    let (proxy, remote, id, bytes) = behind(307, deadlines(Duration::from_secs(60)));
    let small = noise(500, 307);
    // A large body is not sent on connections that were silent for some time, and is not sent twice.
    let silent = Duration::from_millis(2500);
    let work: [(&str, &(dyn Fn() + Sync)); 7] = [
        ("fetch", &|| assert!(remote.fetch(&id).unwrap().1 == bytes)),
        ("part", &|| {
            remote.recent.forget(&id);
            assert!(remote.fetch_part(&id, 200_000, 10).is_ok());
        }),
        ("size", &|| assert!(remote.size(&id).unwrap().is_some())),
        ("list", &|| remote.list(&mut |_, _| true).unwrap()),
        ("small put", &|| assert!(put(&remote, &small) != id)),
        ("record", &|| assert!(!remote.create_record("x", b"y").unwrap())),
        ("large put", &|| assert!(put(&remote, &bytes) == id)),
    ];
    assert!(remote.create_record("x", b"y").unwrap());
    for (what, one) in work {
        at_some_scale(|scale| {
            // Some connections for large bodies and some for others are idle.
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| put(&remote, &bytes));
                    scope.spawn(|| remote.size(&id).unwrap());
                }
            });
            std::thread::sleep(if what == "large put" { silent } else { Duration::ZERO });
            proxy.add(Rule::new(Fault::Dead(Instant::now())));
            let begin = Instant::now();
            one();
            let took = begin.elapsed();
            proxy.faults().clear();
            if took < scale * Duration::from_secs(6) { Ok(()) } else { Err(format!("{what}: {took:?}")) }
        })
        .unwrap();
    }
}
