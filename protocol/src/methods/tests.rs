//! Every method of the table, with arbitrary fields.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::types::{FieldTable, FieldValue};

/// Where a sample method gets its fields from, in turn.
#[derive(Debug, Clone)]
pub(super) struct Source<'a> {
    numbers: std::iter::Cycle<std::slice::Iter<'a, u64>>,
    texts: std::iter::Cycle<std::slice::Iter<'a, String>>,
    tables: std::iter::Cycle<std::slice::Iter<'a, FieldTable>>,
}

impl<'a> Source<'a> {
    pub(super) fn longlong(&mut self) -> u64 {
        *self.numbers.next().unwrap()
    }

    pub(super) fn long(&mut self) -> u32 {
        self.longlong() as u32
    }

    pub(super) fn short(&mut self) -> u16 {
        self.longlong() as u16
    }

    pub(super) fn octet(&mut self) -> u8 {
        self.longlong() as u8
    }

    pub(super) fn bit(&mut self) -> bool {
        self.longlong() & 1 == 1
    }

    pub(super) fn shortstr(&mut self) -> &'a str {
        self.texts.next().unwrap()
    }

    pub(super) fn longstr(&mut self) -> &'a [u8] {
        self.shortstr().as_bytes()
    }

    pub(super) fn table(&mut self) -> FieldTable {
        self.tables.next().unwrap().clone()
    }
}

fn text() -> impl Strategy<Value = String> {
    // at most 4 bytes a character
    prop_oneof!["[a-z.*#]{0,12}", any::<String>().prop_map(|text| text.chars().take(63).collect())]
}

fn table() -> impl Strategy<Value = FieldTable> {
    let value = prop_oneof![
        any::<i64>().prop_map(FieldValue::I64),
        any::<bool>().prop_map(FieldValue::Bool),
        text().prop_map(FieldValue::from)
    ];
    vec((text(), value), 0..4)
        .prop_map(|fields| fields.iter().map(|(name, value)| (name.as_str(), value.clone())).collect())
}

proptest! {
    #[test]
    fn s2_every_method_round_trips(
        numbers in vec(any::<u64>(), 1..9),
        texts in vec(text(), 1..6),
        tables in vec(table(), 1..3),
        bits in any::<u8>(),
    ) {
        let source = Source {
            numbers: numbers.iter().cycle(),
            texts: texts.iter().cycle(),
            tables: tables.iter().cycle(),
        };
        for &id in MethodId::ALL {
            let method = Method::sample(id, &mut source.clone());
            prop_assert_eq!(method.id(), id);
            let mut out = BytesMut::new();
            method.encode(&mut out);
            prop_assert_eq!(&Method::decode(&out), &Ok(method));

            // One byte less or more is an error, and no payload panics.
            prop_assert!(Method::decode(&out[..out.len() - 1]).is_err());
            out.extend_from_slice(&[bits]);
            let longer = Method::decode(&out);
            prop_assert!(matches!(longer, Err(DecodeError::Arguments(_))), "{:?}", longer);
        }
    }
}
