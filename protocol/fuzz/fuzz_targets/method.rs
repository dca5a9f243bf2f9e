//! A method that can be read is the same after writing and reading again.
#![no_main]

use bytes::BytesMut;
use leveret_protocol::Method;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let Ok(method) = Method::decode(payload) else { return };
    let mut out = BytesMut::new();
    method.encode(&mut out);
    let again = Method::decode(&out).expect("what we write can be read");
    // As text, since a NaN in a table does not equal itself.
    assert_eq!(format!("{again:?}"), format!("{method:?}"));
});
