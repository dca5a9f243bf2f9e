//! A stream of bytes means the same whole and in pieces; the first octet says how large the pieces are.
#![no_main]

use leveret_protocol::{Body, Decoder, Event, Fault};
use libfuzzer_sys::fuzz_target;

const PAYLOAD_MAX: u32 = 4096;
const BODY_MAX: u64 = 256;

/// Events as text, without the difference between borrowed and owned, up to the first fault.
fn decode(input: &[u8], piece: usize) -> (Vec<String>, Option<Fault>) {
    let mut decoder = Decoder::new(PAYLOAD_MAX, BODY_MAX);
    let (mut seen, mut start, mut end) = (Vec::new(), 0, 0);
    loop {
        match decoder.next(&input[start..end], &mut start) {
            Ok(Some(event)) => seen.push(show(event)),
            Ok(None) if end == input.len() => return (seen, None),
            Ok(None) => end = input.len().min(end + piece),
            Err(fault) => return (seen, Some(fault)),
        }
    }
}

fn show(event: Event<'_>) -> String {
    match event {
        Event::OwnedPublish { channel, publish } => {
            let mut publish = publish.as_publish();
            let body = std::mem::replace(&mut publish.body, Body::Slice(b""));
            publish.body = match &body {
                Body::Owned(bytes) => Body::Slice(bytes),
                other => other.clone(),
            };
            format!("{:?}", Event::Publish { channel, publish })
        }
        other => format!("{other:?}"),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, input)) = data.split_first() else { return };
    assert_eq!(decode(input, usize::from(piece) + 1), decode(input, input.len() + 1));
});
