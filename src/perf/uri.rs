//! AMQP URIs: `amqp://user:password@host:port/vhost`, every part of which may be missing.

/// Where a broker is, and who enters it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    pub host: String,
    pub port: u16,
    pub user: String,
    pub password: String,
    pub vhost: String,
}

impl Uri {
    /// Reads a URI as RabbitMQ's clients do: parts may be percent-encoded, no path is the vhost `/`, an empty
    /// path the vhost of no name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = match text.split_once("://") {
            Some(("amqp", rest)) => rest,
            Some(("amqps", _)) => return Err("TLS (amqps) is not supported by leveret perf yet".to_owned()),
            Some((scheme, _)) => return Err(format!("the scheme is {scheme}, not amqp")),
            None => text,
        };
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, vhost) = match rest.split_once('/') {
            Some((authority, vhost)) => (authority, decode(vhost)?),
            None => (rest, "/".to_owned()),
        };
        let (login, address) = authority.rsplit_once('@').unwrap_or(("guest:guest", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, "guest"));
        // A colon inside [::1] is no port's.
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port),
            _ => (address, "5672"),
        };
        let port = port.parse().map_err(|_| format!("{port} is no port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.is_empty() { "localhost" } else { host };
        Ok(Self { host: host.to_owned(), port, user: decode(user)?, password: decode(password)?, vhost })
    }
}

/// Resolves `%2F` and the like.
fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| format!("{text}: two hexadecimal digits must follow %"))?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| format!("{text}: not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> (String, u16, String, String, String) {
        let uri = Uri::parse(text).unwrap();
        (uri.host, uri.port, uri.user, uri.password, uri.vhost)
    }

    #[test]
    fn parts_may_be_missing() {
        let own = |host: &str, port, user: &str, password: &str, vhost: &str| {
            (host.to_owned(), port, user.to_owned(), password.to_owned(), vhost.to_owned())
        };
        assert_eq!(uri("amqp://"), own("localhost", 5672, "guest", "guest", "/"));
        assert_eq!(uri("127.0.0.1:5673"), own("127.0.0.1", 5673, "guest", "guest", "/"));
        assert_eq!(uri("amqp://a%40b:c%3Ad@h:1/%2f?x=1"), own("h", 1, "a@b", "c:d", "/"));
        assert_eq!(uri("amqp://[::1]:99/"), own("::1", 99, "guest", "guest", ""));
        assert_eq!(uri("amqp://[::1]/v"), own("::1", 5672, "guest", "guest", "v"));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        assert_eq!(Uri::parse("http://h").unwrap_err(), "the scheme is http, not amqp");
        assert_eq!(Uri::parse("amqp://h:70000").unwrap_err(), "70000 is no port");
        assert!(Uri::parse("amqp://h/%2").unwrap_err().contains("two hexadecimal digits"));
    }
}
