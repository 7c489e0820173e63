//! Text that takes no memory of the allocator.

use core::fmt;

/// A text of at most `ROOM` bytes, on the stack.
pub struct Text<const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
}

impl<const ROOM: usize> Text<ROOM> {
    /// Returns an empty text.
    #[must_use]
    pub const fn new() -> Self {
        Text {
            bytes: [0; ROOM],
            len: 0,
        }
    }

    /// Appends as many bytes as there is room for.
    pub fn add(&mut self, bytes: &[u8]) {
        let room = &mut self.bytes[self.len..];
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
        self.len += len;
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const ROOM: usize> Default for Text<ROOM> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const ROOM: usize> fmt::Debug for Text<ROOM> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Bytes for which there is no room are dropped.
impl<const ROOM: usize> fmt::Write for Text<ROOM> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}
