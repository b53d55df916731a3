//! POSIX access control lists: the kernel's binary form, and how a list and the mode bits follow each other.
//!
//! The form: a little-endian version (2, four bytes), then entries of eight bytes: tag, permissions (two
//! bytes each), id (four). The entries are in the order owner, users, group, groups, mask, others. There is a
//! mask if it is required, and it may be there otherwise.

use super::op::Refusal;

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;
/// The id of entries without a user or group.
const NOBODY: u32 = u32::MAX;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    Group = 0x04,
    NamedGroup = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

impl Tag {
    fn from_bits(bits: u16) -> Option<Tag> {
        [Tag::Owner, Tag::User, Tag::Group, Tag::NamedGroup, Tag::Mask, Tag::Other]
            .into_iter()
            .find(|tag| *tag as u16 == bits)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    perm: u16,
    id: u32,
}

/// A valid list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Reads the kernel's form; none if it has no entries, which means that the list is to be removed.
    pub fn parse(bytes: &[u8]) -> Result<Option<Acl>, Refusal> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (head, rest) = bytes.split_at_checked(HEADER).ok_or(Refusal::Invalid)?;
        if head != VERSION.to_le_bytes() {
            return Err(Refusal::Unsupported);
        }
        if rest.len() % ENTRY != 0 {
            return Err(Refusal::Invalid);
        }
        let entries: Vec<Entry> =
            rest.chunks_exact(ENTRY).map(parse_entry).collect::<Option<_>>().ok_or(Refusal::Invalid)?;
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(Refusal::Invalid) }
    }

    /// The kernel's form.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + ENTRY * self.entries.len());
        out.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            out.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            out.extend_from_slice(&entry.perm.to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let names_someone = count(Tag::User) + count(Tag::NamedGroup) > 0;
        self.entries.is_sorted_by_key(|entry| entry.tag)
            && [Tag::Owner, Tag::Group, Tag::Other].into_iter().all(|tag| count(tag) == 1)
            && count(Tag::Mask) <= 1
            && (!names_someone || count(Tag::Mask) == 1)
    }

    fn perm(&self, tag: Tag) -> Option<u32> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| u32::from(entry.perm))
    }

    fn change(&mut self, tag: Tag, to: impl FnOnce(u16) -> u16) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.tag == tag) {
            entry.perm = to(entry.perm);
        }
    }

    /// The entry that corresponds to the mode's group bits: the mask if there is one.
    fn group_class(&self) -> Tag {
        if self.perm(Tag::Mask).is_some() { Tag::Mask } else { Tag::Group }
    }

    /// The nine mode bits that this list implies.
    pub fn mode_bits(&self) -> u32 {
        let bits = |tag| self.perm(tag).unwrap_or(0);
        bits(Tag::Owner) << 6 | bits(self.group_class()) << 3 | bits(Tag::Other)
    }

    /// Whether the mode bits express the whole list.
    pub fn is_mode_alone(&self) -> bool {
        self.entries.len() == 3
    }

    /// chmod: the list follows the mode's bits.
    pub fn set_mode_bits(&mut self, mode: u32) {
        let bits = |shift: u32| (mode >> shift & 7) as u16;
        self.change(Tag::Owner, |_| bits(6));
        self.change(self.group_class(), |_| bits(3));
        self.change(Tag::Other, |_| bits(0));
    }

    /// Turns a default list into the access list of a new inode that was requested with `mode`. Returns the
    /// nine bits of its mode.
    pub fn inherit(&mut self, mode: u32) -> u32 {
        let bits = |shift: u32| (mode >> shift & 7) as u16;
        self.change(Tag::Owner, |perm| perm & bits(6));
        self.change(self.group_class(), |perm| perm & bits(3));
        self.change(Tag::Other, |perm| perm & bits(0));
        self.mode_bits()
    }
}

fn parse_entry(bytes: &[u8]) -> Option<Entry> {
    let (tag, rest) = bytes.split_first_chunk::<2>()?;
    let (perm, rest) = rest.split_first_chunk::<2>()?;
    let tag = Tag::from_bits(u16::from_le_bytes(*tag))?;
    let perm = Some(u16::from_le_bytes(*perm)).filter(|perm| *perm <= 7)?;
    let id = u32::from_le_bytes(*rest.first_chunk::<4>()?);
    match tag {
        Tag::User | Tag::NamedGroup => (id != NOBODY).then_some(Entry { tag, perm, id }),
        _ => Some(Entry { tag, perm, id: NOBODY }),
    }
}
