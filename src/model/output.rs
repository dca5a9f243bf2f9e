//! What a connection is about to write: encoded bytes, and large bodies shared instead of copied.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use leveret_protocol::{FRAME_OVERHEAD, put_body_frame_head, put_content, put_content_header, put_frame_end};

/// Body parts from this size on are passed on by reference: below it a copy is cheaper than one more
/// piece in the write.
const SHARE_MIN: usize = 16 << 10;

/// Bytes in order: first `chunks`, then `tail`.
#[derive(Debug, Default)]
pub struct Output {
    pub chunks: VecDeque<Bytes>,
    pub tail: BytesMut,
    chunk_bytes: usize,
}

impl Output {
    /// Bytes not yet written.
    pub fn len(&self) -> usize {
        self.chunk_bytes + self.tail.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a content: header frame and body frames that fit `frame_max` (0: unlimited).
    #[inline]
    pub fn put_content(
        &mut self,
        channel: u16,
        frame_max: u32,
        properties: &[u8],
        inline_body: &[u8],
        shared_body: Option<&Bytes>,
    ) {
        match shared_body {
            None => put_content(&mut self.tail, channel, frame_max, properties, inline_body),
            Some(body) if body.len() < SHARE_MIN => put_content(&mut self.tail, channel, frame_max, properties, body),
            Some(body) => self.put_shared(channel, frame_max, properties, body),
        }
    }

    fn put_shared(&mut self, channel: u16, frame_max: u32, properties: &[u8], body: &Bytes) {
        put_content_header(&mut self.tail, channel, properties, body.len() as u64);
        let part_max = if frame_max == 0 { body.len() } else { frame_max as usize - FRAME_OVERHEAD };
        let mut rest = body.clone();
        while !rest.is_empty() {
            let part = rest.split_to(part_max.min(rest.len()));
            put_body_frame_head(&mut self.tail, channel, part.len() as u32);
            if part.len() < SHARE_MIN {
                self.tail.extend_from_slice(&part);
            } else {
                let head = self.tail.split().freeze();
                self.chunk_bytes += head.len() + part.len();
                self.chunks.push_back(head);
                self.chunks.push_back(part);
            }
            put_frame_end(&mut self.tail);
        }
    }

    /// Moves all bytes to the end of `to`.
    pub fn append_to(&mut self, to: &mut BytesMut) {
        self.chunks.drain(..).for_each(|chunk| to.extend_from_slice(&chunk));
        self.chunk_bytes = 0;
        to.extend_from_slice(&self.tail);
        self.tail.clear();
    }

    /// Fills `slices` with what comes next; returns how many were filled.
    pub fn slices<'a>(&'a self, slices: &mut [std::io::IoSlice<'a>]) -> usize {
        let mut count = 0;
        let parts = self.chunks.iter().map(|chunk| chunk.as_ref()).chain(std::iter::once(self.tail.as_ref()));
        for (slot, part) in slices.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
            *slot = std::io::IoSlice::new(part);
            count += 1;
        }
        count
    }

    /// The first `written` bytes are gone.
    pub fn advance(&mut self, mut written: usize) {
        while written > 0 {
            let Some(front) = self.chunks.front_mut() else {
                self.tail.advance(written);
                return;
            };
            let part = written.min(front.len());
            front.advance(part);
            self.chunk_bytes -= part;
            written -= part;
            if front.is_empty() {
                self.chunks.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §1.2: a large body leaves in frames of at most frame_max, byte for byte, and is not copied.
    #[test]
    fn s1_2_large_bodies_are_shared_and_split_to_frame_max() {
        let body = Bytes::from((0..100_000_u32).map(|n| n as u8).collect::<Vec<_>>());
        let mut output = Output::default();
        output.put_content(7, 40_000, &[0, 0], &[], Some(&body));
        let mut copied = BytesMut::new();
        put_content(&mut copied, 7, 40_000, &[0, 0], &body);
        let mut written = Vec::new();
        while !output.is_empty() {
            let mut slices = [std::io::IoSlice::new(&[]); 4];
            let count = output.slices(&mut slices);
            let first = slices[0].to_vec();
            assert!(count > 0);
            let part = first.len().min(12_345);
            written.extend_from_slice(&first[..part]);
            output.advance(part);
        }
        assert_eq!(written, copied);
    }
}
