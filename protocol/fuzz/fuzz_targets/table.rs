//! A table that can be read is written as it was, apart from `L` and odd booleans, and reads the same.
#![no_main]

use bytes::BytesMut;
use leveret_protocol::{RawTable, decode_table_body, put_table};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    for (_, value) in RawTable(body).iter().flatten() {
        let _ = (value.to_value(), value.as_integer(), value.as_array().map(Iterator::count));
    }
    let Ok(table) = decode_table_body(body) else { return };
    let mut out = BytesMut::new();
    put_table(&mut out, &table);
    assert_eq!(out.len(), 4 + body.len());
    let again = decode_table_body(&out[4..]).expect("what we write can be read");
    assert_eq!(format!("{again:?}"), format!("{table:?}"));
});
