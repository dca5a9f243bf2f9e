//! Salted passwords, in each of the forms that RabbitMQ has (management reference 1.10).

use std::fmt;
use std::hint::black_box;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest, Sha256, Sha512};

const SALT_LEN: usize = 4;

/// How a password is hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashAlgorithm {
    #[default]
    Sha256,
    Sha512,
    /// What RabbitMQ 3.5 and older wrote. Never chosen for a new password.
    Md5,
}

impl HashAlgorithm {
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha512, Self::Md5];

    /// RabbitMQ's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "rabbit_password_hashing_sha256",
            Self::Sha512 => "rabbit_password_hashing_sha512",
            Self::Md5 => "rabbit_password_hashing_md5",
        }
    }

    /// The algorithm of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Its field in the record of a user.
    pub(super) fn field(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
            Self::Md5 => "md5",
        }
    }

    /// Bytes of salt and digest.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(self) -> usize {
        SALT_LEN
            + match self {
                Self::Sha256 => 32,
                Self::Sha512 => 64,
                Self::Md5 => 16,
            }
    }

    fn digest(self, salt: &[u8], password: &str) -> Vec<u8> {
        fn of<D: Digest>(salt: &[u8], password: &str) -> Vec<u8> {
            D::new().chain_update(salt).chain_update(password).finalize().to_vec()
        }
        match self {
            Self::Sha256 => of::<Sha256>(salt, password),
            Self::Sha512 => of::<Sha512>(salt, password),
            Self::Md5 => of::<md5::Md5>(salt, password),
        }
    }
}

/// A salted password: 4 bytes of salt, then the digest of salt and password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    algorithm: HashAlgorithm,
    bytes: Box<[u8]>,
}

impl PasswordHash {
    /// The hash of a new password. The salt should be random.
    pub fn new(salt: [u8; SALT_LEN], password: &str) -> Self {
        Self::hash(HashAlgorithm::default(), &salt, password)
    }

    fn hash(algorithm: HashAlgorithm, salt: &[u8], password: &str) -> Self {
        let bytes = [salt, &algorithm.digest(salt, password)].concat().into();
        Self { algorithm, bytes }
    }

    /// Reads a `password_hash` as definitions and the HTTP API have it; `None` if it is not base64 of the
    /// algorithm's length.
    pub fn from_base64(algorithm: HashAlgorithm, text: &str) -> Option<Self> {
        Self::from_bytes(algorithm, &BASE64.decode(text).ok()?)
    }

    pub(super) fn from_bytes(algorithm: HashAlgorithm, bytes: &[u8]) -> Option<Self> {
        (bytes.len() == algorithm.len()).then(|| Self { algorithm, bytes: bytes.into() })
    }

    /// One that no password has, but that costs as much to try as any.
    pub(super) fn of_nobody() -> Self {
        let algorithm = HashAlgorithm::default();
        Self { algorithm, bytes: vec![0; algorithm.len()].into() }
    }

    pub fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn to_base64(&self) -> String {
        BASE64.encode(&self.bytes)
    }

    /// Whether this is the hash of `password`; false for the empty one, whatever was hashed. The time taken tells
    /// nothing about how near a wrong password is.
    pub fn matches(&self, password: &str) -> bool {
        let tried = Self::hash(self.algorithm, &self.bytes[..SALT_LEN], password);
        // Look at every byte, also after the first difference; black_box keeps the compiler from a short cut.
        let difference = self.bytes.iter().zip(&tried.bytes).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
        difference == 0 && !password.is_empty()
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn salt(hex: &str) -> [u8; 4] {
        u32::from_str_radix(hex, 16).unwrap().to_be_bytes()
    }

    /// Hashes made by RabbitMQ (management reference 1.10).
    #[test]
    fn hashes_are_those_of_rabbitmq() {
        for (hex, password, hash) in [
            ("908DC60A", "test12", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"),
            ("F7FD62FA", "guest", "9/1i+jKFRpbTRV1PtRnzFFYibT3cEpP92JeZ8YKGtflf4e/u"),
        ] {
            assert_eq!(PasswordHash::new(salt(hex), password).to_base64(), hash);
            let read = PasswordHash::from_base64(HashAlgorithm::Sha256, hash).unwrap();
            assert_eq!(read.to_base64(), hash);
            assert!(read.matches(password));
            for wrong in ["", "Guest", "guest ", "test1", "test123"] {
                assert!(!read.matches(wrong), "{wrong}");
            }
        }
    }

    /// Each made by RabbitMQ 4.0, of the password `secret`: `rabbit_password:hash(rabbit_password_hashing_md5, …)`.
    #[test]
    fn the_other_algorithms_of_rabbitmq() {
        for (algorithm, hash) in [
            (HashAlgorithm::Md5, "Aj/wIPru8lpMbFcxqNkHKg1Irog="),
            (
                HashAlgorithm::Sha512,
                "tg0a0te3/fmU4MjZNLVQiW43Il4C3U+Wchj0b1TO2smrVaLF7Joidp+YfZnxlk2pOFjZNaKeDLLIxVt4fhJNI5SfBec=",
            ),
        ] {
            let read = PasswordHash::from_base64(algorithm, hash).unwrap();
            assert!(read.matches("secret") && !read.matches("Secret"), "{algorithm:?}");
            assert_eq!(HashAlgorithm::parse(algorithm.name()), Some(algorithm));
        }
        assert_eq!(HashAlgorithm::parse("rabbit_password_hashing_bcrypt"), None);
    }

    #[test]
    fn only_36_bytes_in_base64_are_a_sha256() {
        for text in ["", "guest", "kI3G", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2PORAAAA"] {
            assert_eq!(PasswordHash::from_base64(HashAlgorithm::Sha256, text), None, "{text}");
        }
    }

    #[test]
    fn debug_hides_the_hash() {
        assert_eq!(format!("{:?}", PasswordHash::new([0; 4], "x")), "PasswordHash(..)");
    }
}
