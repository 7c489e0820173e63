//! `select(2)` without the wait: the bitmaps, and one pass over them.

use core::ffi::c_ulong;
use core::fmt;

use smallvec::SmallVec;

use crate::errno::Errno;
use crate::events::Events;
use crate::poll::{Seen, Viewer, on_stack};
use crate::target::Target;

/// Bits in a word of a bitmap.
pub(crate) const WORD: usize = c_ulong::BITS as usize;

/// Stack space for the bitmaps of one call, in bytes (`SELECT_STACK_ALLOC`).
const STACK: usize = 256;

/// Words of a group of three bitmaps that stay on the stack. A call needs two such groups, what
/// was found and what the kernel is asked: fds below 320 fit, as in Linux.
pub(crate) const INLINE: usize = 3 * (STACK / 6 / size_of::<c_ulong>());

const _: () = assert!(2 * INLINE * size_of::<c_ulong>() <= STACK);
const _: () = assert!(INLINE / 3 * WORD >= 320);

/// Three bitmaps of the same size, one behind the other: readable, writable, exceptional.
pub(crate) type Bitmaps = SmallVec<[c_ulong; on_stack(INLINE)]>;

/// The events that count as ready in each of the three sets.
pub(crate) const REPORTED: [Events; 3] = [FdSet::READABLE, FdSet::WRITABLE, FdSet::EXCEPTIONAL];

/// A set of fds, for [`select`](crate::select()): `fd_set` without its limit of 1024.
///
/// Fds below 1024 are kept in place, without an allocation. Without memory for others [`insert`](Self::insert)
/// ends the process, and [`try_insert`](Self::try_insert) fails.
///
/// # Example
/// ```
/// use upoll::FdSet;
/// let mut set = FdSet::new();
/// set.insert(3);
/// set.insert(5000);
/// assert!(set.contains(5000));
/// assert_eq!(set.iter().collect::<Vec<_>>(), [3, 5000]);
/// ```
#[derive(Clone, Default)]
#[doc(alias = "fd_set")]
pub struct FdSet {
    words: SmallVec<[c_ulong; 1024 / WORD]>,
}

impl FdSet {
    /// The events that the set for reading counts as ready (`POLLIN_SET` of Linux).
    pub const READABLE: Events = Events::IN
        .union(Events::RDNORM)
        .union(Events::RDBAND)
        .union(Events::HUP)
        .union(Events::ERR)
        .union(Events::NVAL);
    /// The events that the set for writing counts as ready (`POLLOUT_SET`).
    pub const WRITABLE: Events = Events::OUT
        .union(Events::WRNORM)
        .union(Events::WRBAND)
        .union(Events::ERR)
        .union(Events::NVAL);
    /// The events that the set for exceptional conditions counts as ready (`POLLEX_SET`).
    pub const EXCEPTIONAL: Events = Events::PRI.union(Events::NVAL);

    /// An empty set (`FD_ZERO`).
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        FdSet {
            words: SmallVec::new(),
        }
    }

    /// The set that an `fd_set` of the C library, or a longer array like it, holds. Without memory for a bitmap that is
    /// longer than an `fd_set` the process ends; see [`try_from_words`](Self::try_from_words).
    #[must_use]
    pub fn from_words(words: &[c_ulong]) -> Self {
        FdSet {
            words: SmallVec::from_slice(words),
        }
    }

    /// As [`from_words`](Self::from_words), for a process that goes on without memory.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the bitmap.
    pub fn try_from_words(words: &[c_ulong]) -> Result<Self, Errno> {
        let mut set = FdSet::new();
        set.try_reserve(words.len())?;
        set.words.extend_from_slice(words);
        Ok(set)
    }

    /// Makes room for a bitmap of `words`.
    fn try_reserve(&mut self, words: usize) -> Result<(), Errno> {
        let more = words.saturating_sub(self.words.len());
        self.words.try_reserve(more).map_err(|_| Errno::NOMEM)
    }

    /// The bitmap, as long as was needed so far.
    #[must_use]
    #[inline]
    pub fn as_words(&self) -> &[c_ulong] {
        &self.words
    }

    #[inline]
    fn place(fd: i32) -> Option<(usize, c_ulong)> {
        let at = usize::try_from(fd).ok()?;
        Some((at / WORD, 1 << (at % WORD)))
    }

    /// Adds an fd (`FD_SET`). Without memory for an fd that an `fd_set` has no place for the process ends; see
    /// [`try_insert`](Self::try_insert).
    ///
    /// # Panics
    /// If the fd is negative.
    #[inline]
    pub fn insert(&mut self, fd: i32) {
        let Some((word, bit)) = Self::place(fd) else {
            panic!("a negative fd in a set");
        };
        while word >= self.words.len() {
            self.words.push(0);
        }
        self.words[word] |= bit;
    }

    /// As [`insert`](Self::insert), for a process that goes on without memory.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the bitmap.
    ///
    /// # Panics
    /// If the fd is negative.
    pub fn try_insert(&mut self, fd: i32) -> Result<(), Errno> {
        if let Some((word, _)) = Self::place(fd) {
            self.try_reserve(word + 1)?;
        }
        self.insert(fd);
        Ok(())
    }

    /// Takes an fd out (`FD_CLR`).
    #[inline]
    pub fn remove(&mut self, fd: i32) {
        if let Some((word, bit)) = Self::place(fd)
            && let Some(word) = self.words.get_mut(word)
        {
            *word &= !bit;
        }
    }

    /// Returns whether an fd is in the set (`FD_ISSET`).
    #[must_use]
    #[inline]
    pub fn contains(&self, fd: i32) -> bool {
        Self::place(fd)
            .and_then(|(word, bit)| Some(self.words.get(word)? & bit != 0))
            .unwrap_or(false)
    }

    /// Takes all fds out (`FD_ZERO`).
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The fds, ascending.
    pub fn iter(&self) -> impl Iterator<Item = i32> + '_ {
        self.words.iter().enumerate().flat_map(|(word, &bits)| {
            Bits(bits).filter_map(move |bit| i32::try_from(word * WORD + bit).ok())
        })
    }
}

impl PartialEq for FdSet {
    /// Returns whether both hold the same fds, however long their bitmaps are.
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for FdSet {}

impl FromIterator<i32> for FdSet {
    #[inline]
    fn from_iter<I: IntoIterator<Item = i32>>(fds: I) -> Self {
        let mut set = FdSet::new();
        for fd in fds {
            set.insert(fd);
        }
        set
    }
}

impl fmt::Debug for FdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The positions of the bits that are set, ascending.
struct Bits(c_ulong);

impl Iterator for Bits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(bit as usize)
    }
}

/// The three sets of a call and what was found for them.
pub(crate) struct Selection<'s> {
    /// Fds from here on are not looked at.
    end: usize,
    /// Words of each bitmap that the call covers.
    words: usize,
    sets: [Option<&'s mut FdSet>; 3],
    /// The members that are ready; becomes the sets' new content. The memory is the caller's, as it
    /// is long and this struct is moved.
    found: &'s mut Bitmaps,
}

/// An fd that is in at least one of the sets.
#[derive(Clone, Copy)]
pub(crate) struct Member {
    word: usize,
    bit: c_ulong,
    /// True for each of the sets that it is in.
    wanted: [bool; 3],
}

impl Member {
    /// Returns true for each of the sets that it is in.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn wanted(self) -> [bool; 3] {
        self.wanted
    }

    /// The fd.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "below `n`, which was given as an i32"
    )]
    pub(crate) fn fd(self) -> i32 {
        (self.word * WORD + self.bit.trailing_zeros() as usize) as i32
    }

    /// Returns the events that make it ready in one of the sets that it is in.
    pub(crate) fn counted(self) -> Events {
        let sets = self.wanted.into_iter().zip(REPORTED);
        sets.filter(|(wanted, _)| *wanted)
            .fold(Events::empty(), |all, (_, reported)| all | reported)
    }

    /// Wakes with other keys are of no interest (`wait_key_set`).
    pub(crate) fn filter(self) -> Events {
        let mut filter = REPORTED[2];
        for which in [0, 1] {
            if self.wanted[which] {
                filter |= REPORTED[which];
            }
        }
        filter
    }
}

impl<'s> Selection<'s> {
    /// # Errors
    /// `EINVAL`: `n` is negative. `ENOMEM`: no memory for the bitmaps.
    // Always inline: the sets would be copied as a whole just after each was written, which stalls.
    #[inline(always)]
    pub(crate) fn new(
        n: i32,
        sets: [Option<&'s mut FdSet>; 3],
        found: &'s mut Bitmaps,
    ) -> Result<Self, Errno> {
        let end = usize::try_from(n).map_err(|_| Errno::INVAL)?;
        let longest = sets.iter().flatten().map(|set| set.words.len()).max();
        let words = end.div_ceil(WORD).min(longest.unwrap_or(0));
        found.clear();
        found.try_reserve(3 * words).map_err(|_| Errno::NOMEM)?;
        found.resize(3 * words, 0);
        Ok(Selection {
            end,
            words,
            sets,
            found,
        })
    }

    /// The members in a word, ascending.
    #[inline]
    fn members(&self, word: usize) -> impl Iterator<Item = Member> + use<> {
        let of = |set: &Option<&mut FdSet>| {
            let words = set.as_ref().map_or(&[][..], |set| set.as_words());
            words.get(word).copied().unwrap_or(0)
        };
        let wanted = [of(&self.sets[0]), of(&self.sets[1]), of(&self.sets[2])];
        let mut all = wanted[0] | wanted[1] | wanted[2];
        if self.end - word * WORD < WORD {
            all &= (1 << (self.end % WORD)) - 1;
        }
        Bits(all).map(move |at| {
            let bit = 1 << at;
            Member {
                word,
                bit,
                wanted: wanted.map(|set| set & bit != 0),
            }
        })
    }

    /// The member that an fd is, which is in one of the sets.
    pub(crate) fn member(&self, fd: i32) -> Member {
        let (word, bit) = FdSet::place(fd).unwrap_or((0, 0));
        let is_in = |set: &Option<&mut FdSet>| {
            set.as_ref()
                .and_then(|set| set.as_words().get(word))
                .is_some_and(|&bits| bits & bit != 0)
        };
        Member {
            word,
            bit,
            wanted: [0, 1, 2].map(|which| is_in(&self.sets[which])),
        }
    }

    /// Records the ready events of `member` if its file shows `events`. Returns in how many sets it
    /// is ready.
    #[inline]
    pub(crate) fn note_events(&mut self, member: Member, events: Events) -> usize {
        self.note(member, REPORTED.map(|reported| events.intersects(reported)))
    }

    /// Calls `body` with every member.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn for_each(&mut self, mut body: impl FnMut(&mut Self, Member)) {
        for word in 0..self.words {
            for member in self.members(word) {
                body(self, member);
            }
        }
    }

    /// Calls `body` with every member until it fails.
    #[inline]
    pub(crate) fn try_for_each(
        &self,
        body: impl FnMut(Member) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        (0..self.words)
            .flat_map(|word| self.members(word))
            .try_for_each(body)
    }

    /// Records the ready events of `member`. Returns in how many sets it is ready.
    #[inline]
    pub(crate) fn note(&mut self, member: Member, ready: [bool; 3]) -> usize {
        let mut count = 0;
        for (which, ready) in ready.into_iter().enumerate() {
            if ready && member.wanted[which] {
                self.found[which * self.words + member.word] |= member.bit;
                count += 1;
            }
        }
        count
    }

    /// Sees that all members are open, before any of them is looked at (`max_select_fd`): a look at
    /// a set changes it.
    ///
    /// # Errors
    /// `EBADF`: a member is not open.
    #[inline]
    pub(crate) fn check<'a>(
        &self,
        resolve: &impl Fn(i32) -> Option<Target<'a>>,
    ) -> Result<(), Errno> {
        self.try_for_each(|member| match resolve(member.fd()) {
            Some(_) => Ok(()),
            None => Err(Errno::BADF),
        })
    }

    /// Looks at every user-level object once (`do_select`), and forgets what was found before. A
    /// member that is not open any more shows `NVAL`, as when a descriptor is closed while `select`
    /// waits for it.
    #[inline(always)]
    pub(crate) fn pass<'a, V: Viewer>(
        &mut self,
        resolve: &impl Fn(i32) -> Option<Target<'a>>,
        viewer: &mut V,
    ) -> Seen {
        let mut seen = Seen::default();
        self.found.fill(0);
        for word in 0..self.words {
            for member in self.members(word) {
                let target = resolve(member.fd());
                if let Some(target) = target {
                    seen.count(target);
                }
                let events = match target {
                    Some(Target::File(file)) => {
                        #[cfg(any(feature = "std", upoll_loom))]
                        if V::SLEEPS {
                            seen.count_source(file.description(), member.filter());
                        }
                        viewer.view(file, member.filter())
                    }
                    #[cfg(any(feature = "std", upoll_loom))]
                    Some(Target::Kernel(_) | Target::Descriptor(_)) => continue,
                    None => Events::NVAL,
                };
                if events.is_empty() {
                    continue;
                }
                let bits = self.note_events(member, events);
                if bits > 0 {
                    seen.ready += bits;
                    viewer.hit();
                }
            }
        }
        seen
    }

    /// Hands over what was found: the sets now hold what is ready, in every word that the call
    /// covers.
    // As `new`.
    #[inline(always)]
    pub(crate) fn finish(self) {
        for (which, set) in self.sets.into_iter().enumerate() {
            let Some(set) = set else { continue };
            let found = &self.found[which * self.words..][..self.words];
            // A shorter set has no members in the words that it lacks.
            for (word, &found) in set.words.iter_mut().zip(found) {
                *word = found;
            }
        }
    }
}

/// `select(2)` with a timeout of 0: leaves the ready members in the sets, and returns their
/// number.
///
/// # Errors
/// `EINVAL`: `n` is negative. `EBADF`: an fd below `n` is not open. `ENOMEM`: no memory for long
/// sets.
#[cfg(any(not(feature = "std"), upoll_loom))]
pub fn select_now<'a>(
    n: i32,
    read: Option<&mut FdSet>,
    write: Option<&mut FdSet>,
    except: Option<&mut FdSet>,
    resolve: impl Fn(i32) -> Option<Target<'a>>,
) -> Result<usize, Errno> {
    let mut found = Bitmaps::new();
    let mut selection = Selection::new(n, [read, write, except], &mut found)?;
    selection.check(&resolve)?;
    let seen = selection.pass(&resolve, &mut crate::poll::CheckOnly);
    selection.finish();
    Ok(seen.ready)
}
