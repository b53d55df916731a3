//! Forms with a token that ask for keys.
//!
//! The `object_store` crate puts the content of a token's file into a form as it is. Most files end with a
//! line end, with which the token is another one. So white space at the ends of values is removed.

use super::fault::Fault;

/// White space as a form encodes it.
const BLANKS: [&str; 5] = ["%0A", "%0D", "%09", "%20", "+"];

/// The fields that hold a file's content, and the variables that name the file.
const TOKENS: [(&str, &str); 2] =
    [("WebIdentityToken", "AWS_WEB_IDENTITY_TOKEN_FILE"), ("client_assertion", "AZURE_FEDERATED_TOKEN_FILE")];

/// The form without white space at the ends of its values.
///
/// # Errors
/// A token has a control character inside.
pub(super) fn trimmed(form: &str) -> Result<String, Fault> {
    let mut fields = Vec::new();
    for field in form.split('&') {
        let Some((name, value)) = field.split_once('=') else {
            fields.push(field.to_owned());
            continue;
        };
        let value = without_blanks(value);
        let variable = TOKENS.iter().find(|(field, _)| *field == name).map(|(_, variable)| variable);
        if let Some(variable) = variable.filter(|_| has_control(value)) {
            let what = format!(
                "the file that {variable} names holds a line end or another control character inside its token"
            );
            return Err(Fault::no_keys(what, "correct the file"));
        }
        fields.push(format!("{name}={value}"));
    }
    Ok(fields.join("&"))
}

fn without_blanks(mut value: &str) -> &str {
    let begins = |value: &str, blank: &str| {
        value.get(..blank.len()).is_some_and(|start| start.eq_ignore_ascii_case(blank))
    };
    let ends = |value: &str, blank: &str| {
        let end = value.len().checked_sub(blank.len()).and_then(|at| value.get(at..));
        end.is_some_and(|end| end.eq_ignore_ascii_case(blank))
    };
    while let Some(blank) = BLANKS.iter().find(|blank| begins(value, blank)) {
        value = &value[blank.len()..];
    }
    while let Some(blank) = BLANKS.iter().find(|blank| ends(value, blank)) {
        value = &value[..value.len() - blank.len()];
    }
    value
}

/// Whether an encoded value has a control character of ASCII.
fn has_control(value: &str) -> bool {
    let mut escapes = value.split('%').skip(1).filter_map(|rest| u8::from_str_radix(rest.get(..2)?, 16).ok());
    escapes.any(|byte| byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::{Bucket, Environment};

    const KEYS: &str = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
        <AccessKeyId>A</AccessKeyId><SecretAccessKey>B</SecretAccessKey><SessionToken>C</SessionToken>\
        <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>\
        </AssumeRoleWithWebIdentityResponse>";
    const TOKEN: &str = r#"{"access_token":"D","expires_in":3600}"#;

    /// A service for keys that is also the store. Returns its URL, and the requests that ask for keys.
    fn service() -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let all = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream);
                let (mut head, mut length) = (String::new(), 0);
                while reader.read_line(&mut head).is_ok_and(|read| read > 2) {
                    let line = head.lines().last().unwrap().to_lowercase();
                    length =
                        line.strip_prefix("content-length: ").map_or(length, |text| text.parse().unwrap());
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let form = format!("{head}{}", String::from_utf8_lossy(&body));
                let answer = match form {
                    _ if form.contains("WebIdentityToken=") => KEYS,
                    _ if form.contains("client_assertion=") => TOKEN,
                    _ if form.contains("comp=list") => {
                        "<EnumerationResults><Blobs></Blobs><NextMarker/></EnumerationResults>"
                    }
                    _ => "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
                };
                if [KEYS, TOKEN].contains(&answer) {
                    all.lock().unwrap().push(form);
                }
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{answer}",
                    answer.len()
                );
                let _ = reader.get_mut().write_all(answer.as_bytes());
            }
        });
        (url, asked)
    }

    /// Most files end with a line end, and the services refused such a token.
    #[test]
    fn regression_a_tokens_file_may_end_with_a_line_end() {
        let (url, asked) = service();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let name = file.to_str().unwrap();
        let for_s3 = [
            ("AWS_WEB_IDENTITY_TOKEN_FILE", name),
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r\n"),
            ("AWS_ENDPOINT_URL_STS", &url),
        ];
        let for_azure = [
            ("AZURE_FEDERATED_TOKEN_FILE", name),
            ("AZURE_CLIENT_ID", "client\n"),
            ("AZURE_TENANT_ID", "tenant\n"),
            ("AZURE_AUTHORITY_HOST", &url),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account\n"),
        ];
        let list = |place: &str, variables: &[(&str, &str)]| {
            let environment = Environment::of(variables.iter().copied());
            let bucket = Bucket::open(place, Some(&url), Some("us-east-1"), &environment).unwrap();
            bucket.list(&mut |_| true)
        };
        for (place, variables, field) in [
            ("s3://bucket", &for_s3[..], "WebIdentityToken=ey.J_x-1"),
            ("az://bucket", &for_azure[..], "client_assertion=ey.J_x-1"),
        ] {
            for end in ["", "\n", " \r\n"] {
                std::fs::write(&file, format!("ey.J_x-1{end}")).unwrap();
                list(place, variables).unwrap();
                let form = asked.lock().unwrap().pop().unwrap();
                let after = form.split(field).nth(1).unwrap();
                assert!(after.is_empty() || after.starts_with(['&', ' ']), "{end:?}: {form}");
                assert!(!form.contains("%0A"), "{form}");
            }
            std::fs::write(&file, "ey.J\n_x-1\n").unwrap();
            let refused = list(place, variables).unwrap_err().to_string();
            assert!(refused.contains(variables[0].0) && !refused.contains("ey.J"), "{refused}");
            assert!(asked.lock().unwrap().is_empty(), "nothing was sent");
        }
    }

    #[test]
    fn a_token_is_sent_without_the_line_end_of_its_file() {
        for (given, sent) in [
            ("Action=A&WebIdentityToken=ey.J-_x%0A&Version=1", "Action=A&WebIdentityToken=ey.J-_x&Version=1"),
            ("WebIdentityToken=%20x%0d%0a&a", "WebIdentityToken=x&a"),
            ("client_assertion=x%3D%3D+%0A&scope=a%20b", "client_assertion=x%3D%3D&scope=a%20b"),
            ("a=%C3%A9&b=", "a=%C3%A9&b="),
            ("", ""),
        ] {
            assert_eq!(trimmed(given).unwrap(), sent);
        }
        for (given, variable) in [
            ("WebIdentityToken=sec%0Aret", "AWS_WEB_IDENTITY_TOKEN_FILE"),
            ("client_assertion=sec%00ret%0A", "AZURE_FEDERATED_TOKEN_FILE"),
        ] {
            let refused = trimmed(given).unwrap_err().to_string();
            assert!(refused.contains(variable) && !refused.contains("ret"), "{refused}");
        }
    }
}
