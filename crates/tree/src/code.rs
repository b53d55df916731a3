//! Numbers and bytes in nodes and records: big-endian, or a varint in its shortest form.

/// The input ends too early, or a varint is not in its shortest form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short;

/// Reads values from bytes.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Short> {
        let (first, rest) = self.0.split_at_checked(len).ok_or(Short)?;
        self.0 = rest;
        Ok(first)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Short)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Short> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_be_bytes)
    }

    /// Seven bits per byte, the lowest first.
    pub(crate) fn varint(&mut self) -> Result<u64, Short> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return Err(Short);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                // A last byte of zero would be a second way to write the same number.
                return if byte == 0 && shift > 0 { Err(Short) } else { Ok(value) };
            }
        }
        Err(Short)
    }

    /// A varint that counts the remaining bytes, or items of at least a byte each.
    pub(crate) fn count(&mut self) -> Result<usize, Short> {
        let count = usize::try_from(self.varint()?).map_err(|_| Short)?;
        if count > self.0.len() { Err(Short) } else { Ok(count) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_varint_has_one_form() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = Reader(&out);
            assert_eq!((reader.varint(), reader.is_empty()), (Ok(value), true));
            assert_eq!(Reader(&out[..out.len() - 1]).varint(), Err(Short));
        }
        assert_eq!(Reader(&[0x80, 0]).varint(), Err(Short));
        assert_eq!(Reader(&[0xFF; 11]).varint(), Err(Short));
    }
}
