//! Properties that pass the check can be owned, written and read again.
#![no_main]

use bytes::BytesMut;
use leveret_protocol::{ContentHeader, RawProperties};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let unchecked = RawProperties::from_bytes(payload);
    let _ = (unchecked.headers(), unchecked.timestamp(), unchecked.cluster_id(), unchecked.to_properties());
    let Ok(header) = ContentHeader::decode(payload) else { return };
    let properties = header.properties.to_properties().expect("checked");
    let mut out = BytesMut::new();
    properties.encode(&mut out);
    let again = RawProperties::from_bytes(&out).to_properties().expect("what we write can be read");
    assert_eq!(format!("{again:?}"), format!("{properties:?}"));
    assert_eq!(header.properties.flags(), RawProperties::from_bytes(&out).flags());
});
