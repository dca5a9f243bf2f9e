//! The responses of the SASL mechanisms (reference 3.3).

use leveret_protocol::{DecodeError, FieldValue, decode_table_body};

/// A response that says no user and password. RabbitMQ's texts, but for the response itself, which they quote:
/// it may hold a password, and the text goes to the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaslError {
    #[error("response <<...>> invalid")]
    Plain,
    #[error("AMQPLAIN auth info {{...}} is missing LOGIN or PASSWORD field")]
    AmqplainMissing,
    #[error("AMQPLAIN auth info {{...}} uses unsupported type for LOGIN or PASSWORD field")]
    AmqplainType,
    #[error("AMQPLAIN auth info is no table: {0}")]
    AmqplainTable(DecodeError),
}

/// Reads the response of `PLAIN`: `NUL user NUL password`. User and password.
///
/// # Errors
/// Anything else, an authorization id in front or text that is not UTF-8 included.
pub fn plain(response: &[u8]) -> Result<(String, String), SaslError> {
    let text = std::str::from_utf8(response).map_err(|_| SaslError::Plain)?;
    let (user, password) = text.strip_prefix('\0').and_then(|text| text.split_once('\0')).ok_or(SaslError::Plain)?;
    if password.contains('\0') {
        return Err(SaslError::Plain);
    }
    Ok((user.to_owned(), password.to_owned()))
}

/// Reads the response of `AMQPLAIN`: a field table without its length, with `LOGIN` and `PASSWORD`.
/// User and password.
///
/// # Errors
/// No table, a field missing, or a field that is not text.
pub fn amqplain(response: &[u8]) -> Result<(String, String), SaslError> {
    let table = decode_table_body(response).map_err(SaslError::AmqplainTable)?;
    let (Some(user), Some(password)) = (table.get("LOGIN"), table.get("PASSWORD")) else {
        return Err(SaslError::AmqplainMissing);
    };
    Ok((text(user)?, text(password)?))
}

fn text(value: &FieldValue) -> Result<String, SaslError> {
    let (FieldValue::LongString(bytes) | FieldValue::ByteArray(bytes)) = value else {
        return Err(SaslError::AmqplainType);
    };
    String::from_utf8(bytes.to_vec()).map_err(|_| SaslError::AmqplainType)
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use leveret_protocol::{FieldTable, put_table};

    use super::*;

    fn login(user: &str, password: &str) -> Result<(String, String), SaslError> {
        Ok((user.into(), password.into()))
    }

    #[test]
    fn plain_is_nul_user_nul_password() {
        assert_eq!(plain(b"\0guest\0guest"), login("guest", "guest"));
        assert_eq!(plain(b"\0\0"), login("", ""));
        assert_eq!(plain("\0zoë\0pässword".as_bytes()), login("zoë", "pässword"));
        for wrong in [
            &b""[..],
            b"\0",
            b"guest",
            b"\0guest",
            b"guest\0guest",
            b"admin\0guest\0guest",
            b"\0a\0b\0",
            b"\0a\0b\0c",
            b"\0\xFF\0a",
        ] {
            assert_eq!(plain(wrong), Err(SaslError::Plain), "{wrong:?}");
        }
        assert_eq!(SaslError::Plain.to_string(), "response <<...>> invalid");
    }

    /// An AMQPLAIN response of these fields.
    fn response(fields: &[(&str, FieldValue)]) -> BytesMut {
        let table: FieldTable = fields.iter().map(|(name, value)| (*name, value.clone())).collect();
        let mut out = BytesMut::new();
        put_table(&mut out, &table);
        out.split_off(4)
    }

    #[test]
    fn amqplain_is_a_table_without_length() {
        let bytes = |text: &str| FieldValue::ByteArray(Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(amqplain(b"\x05LOGINS\0\0\0\x01a\x08PASSWORDS\0\0\0\x02bc"), login("a", "bc"));
        let mixed = [("x", 1.into()), ("PASSWORD", bytes("pw")), ("LOGIN", bytes("ann")), ("LOGIN", 1.into())];
        assert_eq!(amqplain(&response(&mixed)), login("ann", "pw"), "any order, either type, the first counts");

        let missing = "AMQPLAIN auth info {...} is missing LOGIN or PASSWORD field";
        for fields in [&[][..], &[("LOGIN", "a".into())], &[("PASSWORD", "a".into())], &[("login", "a".into())]] {
            let error = amqplain(&response(fields)).unwrap_err();
            assert_eq!((&error, error.to_string().as_str()), (&SaslError::AmqplainMissing, missing));
        }
        let unsupported = "AMQPLAIN auth info {...} uses unsupported type for LOGIN or PASSWORD field";
        for fields in
            [[("LOGIN", 1.into()), ("PASSWORD", "a".into())], [("LOGIN", "a".into()), ("PASSWORD", true.into())]]
        {
            let error = amqplain(&response(&fields)).unwrap_err();
            assert_eq!((&error, error.to_string().as_str()), (&SaslError::AmqplainType, unsupported));
        }
        let with_length = b"\0\0\0\x12\x05LOGINS\0\0\0\x01a\x08PASSWORDS\0\0\0\x02bc";
        for wrong in [&b"\x05LOGIN"[..], b"\x05LOGINS\0\0\0\x09a", b"\0guest\0guest", with_length] {
            assert!(matches!(amqplain(wrong), Err(SaslError::AmqplainTable(_))), "{wrong:?}");
        }
    }
}
