//! The parts of an address of a database: servers, and text with `%` escapes.

use meta::engine::database::SetupError;

/// A mistake in an address.
pub(super) fn bad(why: &str) -> SetupError {
    SetupError::Target(why.to_owned())
}

/// The longest name of a volume.
pub(super) const NAME_MAX: usize = 64;

/// Returns whether a text has the form of a volume's name.
pub(super) fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(fits)
}

/// Checks the name of a volume.
pub(super) fn check_volume(name: &str) -> Result<(), SetupError> {
    match name {
        "" => Err(bad("name the volume: ...?volume=NAME")),
        name if is_name(name) => Ok(()),
        name => Err(bad(&format!(
            "the volume's name {name:?} must have 1 to {NAME_MAX} letters, digits, dots, underscores and hyphens"
        ))),
    }
}

/// A server as it stands in an address.
pub(super) fn shown(host: &str, port: u16) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { encoded(host) };
    format!("{host}:{port}")
}

/// A server's name and port.
pub(super) fn host_and_port(text: &str, default: u16) -> Result<(String, u16), SetupError> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host.to_owned(), rest.strip_prefix(':')),
        None => match text.split_once(':') {
            Some((host, port)) => (decoded(host)?, Some(port)),
            None => (decoded(text)?, None),
        },
    };
    let Some(port) = port else { return Ok((host, default)) };
    // The message does not show it: it may be a part of a password with a `?` in it.
    let number = port.parse::<u16>().ok().filter(|port| *port > 0);
    Ok((host, number.ok_or_else(|| bad("its port must be a number from 1 to 65535"))?))
}

/// Replaces the escapes.
pub(super) fn decoded(text: &str) -> Result<String, SetupError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(bad("a % must be followed by two hexadecimal digits"));
        };
        bytes.push((high * 16 + low) as u8);
    }
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    text.ok_or_else(|| bad("it is not text after its % are replaced"))
}

/// Writes everything but letters, digits and `._-~` as escapes.
pub(super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
