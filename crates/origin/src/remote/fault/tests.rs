use super::*;

fn refusal(status: u16, body: &str) -> Fault {
    read_refusal(status, "store.example", &Head::default(), body, |text| text.replace("TOKEN", "..."))
}

fn xml(code: &str, more: &str) -> String {
    format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>In words.</Message>{more}</Error>")
}

fn spec() -> RemoteSpec {
    RemoteSpec::parse("s3://bucket/p").unwrap().at(Some("http://store.example"), Some("us-east-1")).unwrap()
}

fn line(fault: &Fault) -> String {
    let spec = spec();
    explain(
        fault,
        &About {
            spec: &spec,
            keys: "AWS_ACCESS_KEY_ID of the environment",
            rights: "get, put, delete and list",
        },
    )
    .to_string()
}

#[test]
fn each_mistake_is_one_line_that_names_it() {
    let endpoint = "<Endpoint>bucket.s3.eu-west-1.amazonaws.com</Endpoint>";
    for (status, body, mistake, says) in [
        (403, xml("InvalidAccessKeyId", ""), Mistake::AccessKey, "check AWS_ACCESS_KEY_ID"),
        (
            403,
            xml("SignatureDoesNotMatch", "<StringToSign>TOKEN</StringToSign>"),
            Mistake::Secret,
            "secret key",
        ),
        (400, xml("ExpiredToken", ""), Mistake::Expired, "has expired"),
        (403, xml("RequestTimeTooSkewed", ""), Mistake::Clock, "clock"),
        (404, xml("NoSuchBucket", ""), Mistake::Bucket, "no bucket bucket"),
        (301, xml("PermanentRedirect", endpoint), Mistake::Region, "--region eu-west-1"),
        (
            400,
            xml("AuthorizationHeaderMalformed", "<Region>eu-central-1</Region>"),
            Mistake::Region,
            "--region eu-central-1",
        ),
        (301, String::new(), Mistake::Region, "--region"),
        (403, xml("AccessDenied", ""), Mistake::Denied, "get, put, delete and list"),
        (403, String::new(), Mistake::Denied, "HTTP 403"),
        (403, xml("InvalidObjectState", ""), Mistake::Denied, "restore it"),
        (
            200,
            "<!DOCTYPE html><html>Welcome".to_owned(),
            Mistake::NotAStore,
            "does not answer as an object store",
        ),
        (404, "<html>".to_owned(), Mistake::NotAStore, "check the endpoint"),
        (503, xml("SlowDown", ""), Mistake::Busy, "SlowDown"),
        (507, xml("XMinioStorageFull", ""), Mistake::Full, "no room"),
        (501, xml("NotImplemented", ""), Mistake::Other, "In words."),
    ] {
        let fault = refusal(status, &body);
        let line = line(&fault);
        assert_eq!(mistake_of(&fault), mistake, "{line}");
        assert!(line.contains(says) && !line.contains('\n') && !line.contains("TOKEN"), "{line}");
    }
}

#[test]
fn what_cannot_be_reached_is_named() {
    for (how, says) in [
        (Unreached::Name, "has no address"),
        (Unreached::Refused, "nothing listens at"),
        (Unreached::Tls, "SSL_CERT_FILE"),
        (Unreached::Other, "cannot be reached"),
    ] {
        let fault = Fault::Unreached { how, host: "store.example:9000".to_owned(), what: "x".to_owned() };
        assert!(
            line(&fault).contains(says) && line(&fault).contains("store.example:9000"),
            "{}",
            line(&fault)
        );
    }
}

#[test]
fn what_may_pass_is_tried_again_and_the_rest_is_not() {
    for status in [408, 420, 421, 425, 429, 460, 499, 500, 502, 503, 504, 505, 509, 520, 522, 524, 530, 599] {
        assert!(refusal(status, "").may_pass(50), "{status}");
    }
    for code in ["Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestTimeout", "SlowDown"] {
        for status in [400, 403, 503] {
            let fault = refusal(status, &xml(code, ""));
            assert!(fault.may_pass(50) && mistake_of(&fault) == Mistake::Busy, "{status} {code}");
        }
    }
    for status in [400, 401, 403, 404, 411, 301, 501] {
        assert!(!refusal(status, "").may_pass(1), "{status}");
    }
    assert!(refusal(400, &xml("BadDigest", "")).may_pass(1));
    assert!(!refusal(400, &xml("BadDigest", "")).may_pass(9));
    assert!(Fault::Cut(String::new()).may_pass(99) && !Fault::no_keys("", "").may_pass(1));
}

/// The refusal of one of many keys was taken for nonsense, and all of them were tried again.
#[test]
fn regression_a_refused_key_of_a_request_for_many_is_a_refusal() {
    let of = |code: &str| {
        let text = format!("DeleteObjects request failed for key a (b): No. (code: {code})");
        Fault::of(&object_store::Error::Generic { store: "S3", source: text.into() })
    };
    assert_eq!(mistake_of(&of("AccessDenied")), Mistake::Denied);
    assert!(
        !of("AccessDenied").may_pass(1) && of("InternalError").may_pass(50) && of("NoSuchKey").is_missing()
    );
    assert!(of("ObjectLocked").is_about_object());
}

#[test]
fn a_missing_object_is_not_a_missing_bucket() {
    assert!(refusal(404, &xml("NoSuchKey", "")).is_missing() && refusal(404, "").is_missing());
    assert!(!refusal(404, &xml("NoSuchBucket", "")).is_missing());
    assert!(!refusal(404, "<html>not here</html>").is_missing());
    assert!(refusal(412, "").is_taken() && !refusal(409, "").is_taken());
}

#[test]
fn messages_are_cut_and_keys_taken_out() {
    let long = "x".repeat(1000);
    let fault =
        refusal(400, &format!("<Error><Code>Odd</Code><Message>TOKEN {long}\nmore</Message></Error>"));
    let line = line(&fault);
    assert!(line.len() < 300 && !line.contains("TOKEN") && !line.contains('\n'), "{line}");
    let google =
        refusal(403, "{\"error\": {\"message\": \"no way\", \"errors\": [{\"reason\": \"forbidden\"}]}}");
    assert_eq!(google.code(), "forbidden");
}

#[test]
fn an_answer_about_keys_is_not_one_about_objects() {
    let head = Head { keys: true, ..Head::default() };
    let fault = read_refusal(404, "169.254.169.254", &head, "", str::to_owned);
    assert!(!fault.is_missing() && !fault.may_pass(1));
    assert!(line(&fault).contains("no keys could be had from"), "{}", line(&fault));
}
