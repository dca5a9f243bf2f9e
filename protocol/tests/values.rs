//! Reference 1.5 and 1.6: field values and tables, their types, limits and round trip.

use bytes::{Bytes, BytesMut};
use leveret_protocol::*;

/// A table body with one field `k`, whose type and bytes these are.
fn field(tag: u8, value: &[u8]) -> Vec<u8> {
    [b"\x01k", &[tag][..], value].concat()
}

/// With the length in front.
fn sized(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_be_bytes()[..], body].concat()
}

fn read(tag: u8, value: &[u8]) -> Result<FieldValue, DecodeError> {
    let mut table = decode_table_body(&field(tag, value))?;
    Ok(table.remove("k").unwrap())
}

fn written(value: &FieldValue) -> Vec<u8> {
    let mut out = BytesMut::new();
    put_value(&mut out, value);
    out.to_vec()
}

#[test]
fn s1_6_every_type_is_read_and_written() {
    let inner: FieldTable = [("n", FieldValue::Void)].into_iter().collect();
    let rows = [
        (b't', &b"\x01"[..], FieldValue::Bool(true), "bool"),
        (b't', b"\x00", FieldValue::Bool(false), "bool"),
        (b'b', b"\xFE", FieldValue::I8(-2), "byte"),
        (b'B', b"\xFE", FieldValue::U8(254), "unsignedbyte"),
        (b's', b"\xFF\xFE", FieldValue::I16(-2), "short"),
        (b'u', b"\xFF\xFE", FieldValue::U16(65_534), "unsignedshort"),
        (b'I', b"\xFF\xFF\xFF\xFE", FieldValue::I32(-2), "signedint"),
        (b'i', b"\xFF\xFF\xFF\xFE", FieldValue::U32(4_294_967_294), "unsignedint"),
        (b'l', b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE", FieldValue::I64(-2), "long"),
        (b'f', b"\x3F\xC0\0\0", FieldValue::F32(1.5), "float"),
        (b'd', b"\xBF\xF8\0\0\0\0\0\0", FieldValue::F64(-1.5), "double"),
        (b'D', b"\x02\xFF\0\0\x01", FieldValue::Decimal { scale: 2, value: 0xFF00_0001 }, "decimal"),
        (b'S', b"\0\0\0\x02hi", FieldValue::LongString(Bytes::from_static(b"hi")), "longstr"),
        (b'S', b"\0\0\0\x01\xFF", FieldValue::LongString(Bytes::from_static(b"\xFF")), "longstr"),
        (b'x', b"\0\0\0\x02hi", FieldValue::ByteArray(Bytes::from_static(b"hi")), "binary"),
        (b'T', b"\xFF\0\0\0\0\0\0\x01", FieldValue::Timestamp(0xFF00_0000_0000_0001), "timestamp"),
        (b'F', b"\0\0\0\x03\x01nV", FieldValue::Table(inner), "table"),
        (b'A', b"\0\0\0\x03Vt\x01", FieldValue::Array(vec![FieldValue::Void, FieldValue::Bool(true)]), "array"),
        (b'V', b"", FieldValue::Void, "void"),
    ];
    for (tag, bytes, value, name) in rows {
        assert_eq!(read(tag, bytes), Ok(value.clone()));
        assert_eq!((value.tag(), value.type_name()), (tag, name));
        assert_eq!(written(&value), [&[tag][..], bytes].concat());
        for end in 0..bytes.len() {
            assert_eq!(read(tag, &bytes[..end]), Err(DecodeError::Truncated), "{name}");
        }
    }
}

#[test]
fn s1_6_capital_l_is_read_as_signed_and_written_as_l() {
    let value = read(b'L', b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF").unwrap();
    assert_eq!(value, FieldValue::I64(-1));
    assert_eq!(written(&value)[0], b'l');
}

#[test]
fn s1_6_any_octet_but_0_is_true() {
    assert_eq!(read(b't', b"\x80"), Ok(FieldValue::Bool(true)));
    assert_eq!(written(&FieldValue::Bool(true)), b"t\x01");
}

#[test]
fn s1_6_other_tags_are_502() {
    for tag in (0..=255).filter(|tag| !b"tbBsuIilLfdDSxTFAV".contains(tag)) {
        let error = read(tag, &[0; 9]).unwrap_err();
        assert_eq!(error, DecodeError::UnknownFieldType(tag));
        assert_eq!(error.reply_code(), ReplyCode::SyntaxError);
        let raw = RawTable(b"");
        assert!(raw.is_empty());
        assert_eq!(RawValue { tag, bytes: &[0] }.to_value(), Err(error));
    }
}

#[test]
fn s1_6_capital_u_and_minus_are_refused_in_method_arguments() {
    for tag in *b"U-" {
        let arguments = sized(&field(tag, &[0, 0]));
        let payload = [&[0, 50, 0, 50, 0, 0, 0, 0, 0][..], &arguments].concat(); // queue.unbind
        assert_eq!(Method::decode(&payload), Err(DecodeError::UnknownFieldType(tag)));
    }
}

#[test]
fn s1_5_a_table_has_a_length_and_leaves_the_rest_alone() {
    let bytes = [sized(&field(b'V', b"")), vec![1, 2, 3]].concat();
    let (table, used) = decode_table(&bytes).unwrap();
    assert_eq!((table.len(), used), (1, 7));
    assert_eq!(decode_table(&bytes[..6]), Err(DecodeError::Truncated));
    assert_eq!(decode_table(&[0, 0, 0]), Err(DecodeError::Truncated));
    assert_eq!(decode_table(&[0, 0, 0, 0]), Ok((FieldTable::new(), 4)));
    assert_eq!(decode_table_body(b""), Ok(FieldTable::new()));
}

#[test]
fn s3_3_amqplain_response_has_no_length() {
    let table = decode_table_body(b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x02pw").unwrap();
    assert_eq!(table.get("LOGIN").and_then(FieldValue::as_str), Some("guest"));
    assert_eq!(table.get("PASSWORD").and_then(FieldValue::as_str), Some("pw"));
}

#[test]
fn s1_5_order_duplicates_and_odd_names_stay() {
    let body = b"\x01bV\x01aV\x01bt\x01\x00V\x02\xFF\xFEV";
    let table = decode_table_body(body).unwrap();
    let names: Vec<&[u8]> = table.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, [&b"b"[..], b"a", b"b", b"", b"\xFF\xFE"]);
    assert_eq!(table.get("b"), Some(&FieldValue::Void), "the first counts");
    let mut out = BytesMut::new();
    put_table(&mut out, &table);
    assert_eq!(out[4..], body[..]);
    assert_eq!(RawTable(body).get("b").unwrap().to_value(), Ok(FieldValue::Void));
    assert_eq!(RawTable(body).get("c"), None);
    assert_eq!(RawTable(body).iter().count(), 5);
}

#[test]
fn s1_5_tables_are_edited_in_place() {
    let mut table: FieldTable = [("a", 1.into()), ("b", 2.into()), ("a", 3.into())].into_iter().collect();
    assert_eq!(table.insert("a", "new"), Some(FieldValue::I32(1)));
    assert_eq!(table.insert("c", true), None);
    let names: Vec<_> = table.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["a", "b", "a", "c"]);
    assert_eq!(table.remove("a"), Some("new".into()));
    assert_eq!(table.remove("a"), None);
    assert_eq!((table.len(), table.is_empty()), (2, false));
}

#[test]
fn s1_5_names_are_at_most_255_bytes() {
    assert!(ShortName::new(&[b'n'; 255]).is_some());
    assert!(ShortName::new(&[b'n'; 256]).is_none());
    let name = "n".repeat(255);
    let mut out = BytesMut::new();
    put_short_string(&mut out, name.as_bytes());
    assert_eq!((out[0], out.len()), (255, 256));
}

#[test]
fn s1_6_views_of_a_value() {
    for value in [FieldValue::I8(7), FieldValue::U8(7), FieldValue::I16(7), FieldValue::U16(7), 7.into(), 7i64.into()] {
        assert_eq!(value.as_integer(), Some(7));
    }
    assert_eq!(FieldValue::U32(u32::MAX).as_integer(), Some(4_294_967_295));
    let decimal = FieldValue::Decimal { scale: 0, value: 7 };
    for other in [FieldValue::Bool(true), decimal, FieldValue::Timestamp(7), FieldValue::F64(7.0), "7".into()] {
        assert_eq!(other.as_integer(), None);
    }
    assert_eq!(FieldValue::from("text").as_str(), Some("text"));
    assert_eq!(FieldValue::LongString(Bytes::from_static(b"\xFF")).as_str(), None);
    assert_eq!(FieldValue::ByteArray(Bytes::from_static(b"text")).as_str(), None);
    assert_eq!(FieldValue::from(true).as_bool(), Some(true));
    assert_eq!(FieldValue::from(1).as_bool(), None);
    assert_eq!(FieldValue::from(vec![1.into()]).as_array(), Some(&[FieldValue::I32(1)][..]));
    assert_eq!(FieldValue::from(FieldTable::new()).as_table(), Some(&FieldTable::new()));
}

#[test]
fn s1_6_views_of_a_raw_value() {
    let body =
        b"\x02CCA\0\0\0\x0ES\0\0\0\x02k1S\0\0\0\x02k2\x01sS\0\0\0\x01v\x01nL\0\0\0\0\0\0\0\x09\x01tF\0\0\0\x03\x01xV";
    let table = RawTable(body);
    let keys: Vec<_> = table.get("CC").unwrap().as_array().unwrap().map(|key| key.unwrap().as_str().unwrap()).collect();
    assert_eq!(keys, ["k1", "k2"]);
    assert_eq!(table.get("s").unwrap().as_long_string(), Some(&b"v"[..]));
    assert_eq!(table.get("n").unwrap().as_integer(), Some(9));
    assert_eq!(table.get("s").unwrap().as_integer(), None);
    assert_eq!(table.get("t").unwrap().as_table().unwrap().get("x").unwrap().tag, b'V');
    assert!(table.get("s").unwrap().as_array().is_none());
    assert_eq!(table.to_table(), decode_table_body(body));
    let collected: Result<Vec<_>, _> = table.into_iter().collect();
    assert_eq!(collected.unwrap().len(), 4);
}

#[test]
fn s1_6_raw_values_that_nobody_checked_do_not_panic() {
    for tag in 0..=255 {
        for len in 0..10 {
            let value = RawValue { tag, bytes: &[0; 10][..len] };
            let _ = (value.to_value(), value.as_integer(), value.as_str());
        }
    }
    let broken = RawTable(b"\x01aV\x01b");
    assert_eq!(broken.iter().collect::<Vec<_>>().len(), 2);
    assert_eq!(broken.iter().last(), Some(Err(DecodeError::Truncated)));
    assert_eq!((broken.get("a").is_some(), broken.get("b")), (true, None));
}

/// `levels` tables within each other, alternating with arrays.
fn nested(levels: usize) -> Vec<u8> {
    (1..levels).fold(Vec::new(), |inner, level| {
        if level % 2 == 1 {
            field(b'F', &sized(&inner))
        } else {
            field(b'A', &sized(&[&b"F"[..], &sized(&inner)].concat()))
        }
    })
}

#[test]
fn s1_6_nesting_is_bounded() {
    let tables = |levels| (1..levels).fold(Vec::new(), |inner: Vec<u8>, _| field(b'F', &sized(&inner)));
    let max = usize::from(TABLE_DEPTH_MAX);
    let table = decode_table_body(&tables(max)).unwrap();
    let mut out = BytesMut::new();
    put_table(&mut out, &table);
    assert_eq!(out[4..], tables(max)[..]);
    assert_eq!(decode_table_body(&tables(max + 1)), Err(DecodeError::TableTooDeep));
    // A level of arrays counts as well.
    assert!(decode_table_body(&nested(max / 2)).is_ok());
    assert_eq!(decode_table_body(&nested(max)), Err(DecodeError::TableTooDeep));
    let arrays = |levels| (1..levels).fold(Vec::new(), |inner: Vec<u8>, _| [&b"A"[..], &sized(&inner)].concat());
    assert!(decode_table_body(&[&b"\x01k"[..], &arrays(max)].concat()).is_ok());
    assert_eq!(decode_table_body(&[&b"\x01k"[..], &arrays(max + 1)].concat()), Err(DecodeError::TableTooDeep));
}

#[test]
fn s1_6_number_of_values_is_bounded() {
    let array = |count: usize| field(b'A', &sized(&vec![b'V'; count]));
    // the array itself is one
    assert!(decode_table_body(&array(TABLE_VALUES_MAX - 1)).is_ok());
    assert_eq!(decode_table_body(&array(TABLE_VALUES_MAX)), Err(DecodeError::TableTooManyValues));
    let fields = |count: usize| b"\0V".repeat(count);
    assert!(decode_table_body(&fields(TABLE_VALUES_MAX)).is_ok());
    assert_eq!(decode_table_body(&fields(TABLE_VALUES_MAX + 1)), Err(DecodeError::TableTooManyValues));
}

#[test]
fn s1_6_size_is_bounded() {
    let table = |len: usize| field(b'x', &sized(&vec![0; len - 7]));
    assert!(decode_table_body(&table(TABLE_SIZE_MAX)).is_ok());
    assert_eq!(decode_table_body(&table(TABLE_SIZE_MAX + 1)), Err(DecodeError::TableTooLarge));
    let long = vec![0; TABLE_SIZE_MAX + 1];
    assert_eq!(RawValue { tag: b'S', bytes: &long }.to_value(), Err(DecodeError::TableTooLarge));
}
