//! Memory that a caller points to. An invalid pointer makes the call fail with `EFAULT`, as in the
//! kernel, instead of raising a signal.
//!
//! # Cost
//! Before a page is used, the kernel has confirmed to this process that it is readable, or writable. A
//! `futex(2)` call reads a word of the page, or adds zero to it atomically, and fails with `EFAULT`
//! if it cannot. The process remembers pages in a table. A call thus costs a comparison per page, and the first call
//! on a page some 150 ns.
//!
//! # Pages that it cannot check
//! A page that was used here, by any thread, may have been unmapped or protected since. Using it raises `SIGSEGV`, as it
//! would in any library function. So does a page that another thread has used and that this one's protection keys exclude.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use upoll::Errno;

use crate::kernel::call;

const PAGE: usize = 4096;

/// The first address that is not a program's (`TASK_SIZE_MAX`).
const END: usize = if cfg!(target_arch = "x86_64") {
    (1 << 47) - PAGE
} else {
    1 << 56
};

/// The use of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

/// The number of known pages: enough for hundreds of threads that wait with room for ten thousand events.
const KNOWN: usize = 1 << 14;

/// So many pages, one after the other, have their places in a row: a buffer or a stack takes few pages of the table.
const ROW: usize = 64;

/// The number of places in which a page can be remembered.
const WAYS: usize = 4;

/// The pages that the kernel has confirmed: for each, [`as_readable`], and one more if it is writable. 0 is none. In no order
/// with anything: the kernel has the memory, not the thread that has asked.
static KNOWN_PAGES: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];

/// Asks the kernel whether the word at an address can be used, and so its page. Fails with what else the kernel answers,
/// as where a filter of system calls refuses the question.
#[cold]
fn probe(address: usize, intent: Use) -> Result<bool, Errno> {
    static NOBODY_WAITS: AtomicU32 = AtomicU32::new(0);
    const REQUEUE: i32 = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
    const WAKE_OP: i32 = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // Operand and comparison, for equality, are 0.
    const ADD_ZERO: i32 = libc::FUTEX_OP_ADD << 28;
    let address = address & !3;
    let own = NOBODY_WAITS.as_ptr();
    let answer = match intent {
        // SAFETY: the kernel reads a word at the address, if it can. Should the word be 0 nobody is
        // woken and nobody moved.
        Use::Read => unsafe { call!(SYS_futex, address, REQUEUE, 0, 0, own, 0) },
        // SAFETY: the kernel adds 0 to the word at the address in one step, if it can. Should the
        // word have been 0, one sleeper at most is woken that takes it for a futex, for nothing.
        Use::Write => unsafe { call!(SYS_futex, own, WAKE_OP, 0, 0, address, ADD_ZERO) },
    };
    confirms(answer)
}

/// Returns whether an answer of the kernel confirms the page.
fn confirms<T>(answer: Result<T, Errno>) -> Result<bool, Errno> {
    match answer {
        // The word is not zero.
        Ok(_) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::FAULT) => Ok(false),
        Err(other) => Err(other),
    }
}

/// Returns the place in which a page is looked for first, or after `way` others. The stacks of threads are a power of two
/// apart, so the number of the row is multiplied.
#[inline]
fn place_of(page: usize, way: usize) -> usize {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    const ROWS: usize = KNOWN / ROW;
    let hash = ((page / ROW) as u64).wrapping_mul(FACTOR) >> (u64::BITS - ROWS.ilog2());
    (hash as usize ^ way) % ROWS * ROW + page % ROW
}

/// Stands for a page that is readable, and never is 0.
#[inline]
fn as_readable(page: usize) -> u64 {
    (page as u64 + 1) << 1
}

#[inline]
fn is_known_at(place: usize, page: usize, intent: Use) -> bool {
    let known = KNOWN_PAGES[place].load(Ordering::Relaxed) ^ as_readable(page);
    match intent {
        // A writable page is readable.
        Use::Read => known <= 1,
        Use::Write => known == 1,
    }
}

fn is_usable(address: usize, intent: Use) -> bool {
    let page = address / PAGE;
    if (0..WAYS).any(|way| is_known_at(place_of(page, way), page, intent)) {
        return true;
    }
    let answer = probe(address, intent);
    if answer == Ok(true) {
        remember(page, intent);
    }
    // A page that cannot be asked about counts as usable, as it does to any library function.
    answer.unwrap_or(true)
}

/// Puts a page into its first place, and each that was in one of its places into the next one. The last one is forgotten.
fn remember(page: usize, intent: Use) {
    let mut moving = as_readable(page) | u64::from(intent == Use::Write);
    for way in 0..WAYS {
        moving = KNOWN_PAGES[place_of(page, way)].swap(moving, Ordering::Relaxed);
        if moving == 0 || moving >> 1 == as_readable(page) >> 1 {
            return;
        }
    }
}

/// Returns the number of bytes, of `len` from `address` on, that can be used without a gap.
#[inline]
fn usable(address: usize, len: usize, intent: Use) -> usize {
    match is_on_known_page(address, len, intent) {
        true => len,
        false => usable_by_pages(address, len, intent),
    }
}

/// Returns whether all of the memory lies on one page that is known, as most does.
#[inline]
fn is_on_known_page(address: usize, len: usize, intent: Use) -> bool {
    let page = address / PAGE;
    len <= PAGE - address % PAGE && is_known_at(place_of(page, 0), page, intent)
}

#[inline(never)]
fn usable_by_pages(address: usize, len: usize, intent: Use) -> usize {
    if len == 0 {
        return 0;
    }
    let end = address.saturating_add(len).min(END);
    let mut at = address;
    while at < end {
        if !is_usable(at, intent) {
            return at - address;
        }
        at = (at / PAGE + 1) * PAGE;
    }
    end.saturating_sub(address)
}

/// The check that the kernel makes before it looks at a buffer: whether it is where programs have
/// their memory (`access_ok`).
#[inline]
pub(crate) fn check_range<T>(address: *const T, len: usize) -> Result<(), Errno> {
    match address.addr().checked_add(len) {
        Some(end) if end <= END => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// The part of a caller's buffer that can be read.
///
/// # Safety
/// Nobody else writes the memory while the slice lives, or the program does not care what is read.
#[inline]
pub(crate) unsafe fn readable<'a>(buffer: *const u8, len: usize) -> &'a [u8] {
    let len = usable(buffer.addr(), len, Use::Read);
    if len == 0 {
        return &[];
    }
    // SAFETY: the kernel has confirmed the pages, and a caller's buffer stays mapped. The caller rules out races.
    unsafe { std::slice::from_raw_parts(buffer, len) }
}

/// The part of a caller's buffer that can be written, in whole `T`s, which have no invalid values
/// and no alignment.
///
/// # Safety
/// It is a caller's buffer for output: nobody else uses it.
#[inline]
pub(crate) unsafe fn writable<'a, T>(buffer: *mut T, count: usize) -> &'a mut [T] {
    let bytes = count.saturating_mul(size_of::<T>());
    let count = match is_on_known_page(buffer.addr(), bytes, Use::Write) {
        true => count,
        false => usable_by_pages(buffer.addr(), bytes, Use::Write) / size_of::<T>(),
    };
    if count == 0 {
        return &mut [];
    }
    // SAFETY: as for `readable`.
    unsafe { std::slice::from_raw_parts_mut(buffer, count) }
}

/// Returns whether all of a caller's buffer can be written.
#[inline]
pub(crate) fn is_writable<T>(buffer: *mut T, len: usize) -> bool {
    usable(buffer.addr(), len, Use::Write) == len
}

/// Reads what a caller points to (`copy_from_user`).
///
/// # Errors
/// `EFAULT`: it cannot be read.
///
/// # Safety
/// Nobody writes it meanwhile. A `T` has no invalid values.
#[inline]
pub unsafe fn read<T: Copy>(from: *const T) -> Result<T, Errno> {
    check_read(from)?;
    // SAFETY: the kernel has confirmed the pages, and what a caller points to stays mapped.
    Ok(unsafe { from.read_unaligned() })
}

/// Checks that [`read`] would succeed, for callers that read in parts.
///
/// # Errors
/// `EFAULT`: it cannot be read.
#[inline]
pub(crate) fn check_read<T>(from: *const T) -> Result<(), Errno> {
    match usable(from.addr(), size_of::<T>(), Use::Read) < size_of::<T>() {
        true => Err(Errno::FAULT),
        false => Ok(()),
    }
}

/// Returns how many of `count` values, one after the other, [`read`] would succeed for.
#[inline]
pub fn count_readable<T>(from: *const T, count: usize) -> usize {
    usable(from.addr(), count.saturating_mul(size_of::<T>()), Use::Read) / size_of::<T>()
}

/// Returns whether `count` values, one after the other, are on one page of which that is known without asking the kernel.
#[inline]
pub fn is_known_readable<T>(from: *const T, count: usize) -> bool {
    is_on_known_page(from.addr(), count.saturating_mul(size_of::<T>()), Use::Read)
}

/// `copy_to_user`.
///
/// # Safety
/// Memory that `to` leads to is the caller's, and nobody else uses it.
#[inline]
pub unsafe fn write<T: Copy>(to: *mut T, value: T) -> Result<(), Errno> {
    if usable(to.addr(), size_of::<T>(), Use::Write) < size_of::<T>() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the kernel has confirmed the pages, and what a caller points to stays mapped and writable.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// `copy_to_user` of what the kernel writes if it can, and leaves alone otherwise: the kernel is asked each time, because a
/// correct caller may have protected the page since.
///
/// # Safety
/// As [`write()`].
pub unsafe fn write_if_possible<T: Copy>(to: *mut T, value: T) {
    let (first, last) = (to.addr(), to.addr().saturating_add(size_of::<T>() - 1));
    // A page that cannot be asked about counts as usable, as it does to any library function.
    let is_possible = |address| probe(address, Use::Write).unwrap_or(true);
    let is_on_one = first / PAGE == last / PAGE;
    if last < END && is_possible(first) && (is_on_one || is_possible(last)) {
        // SAFETY: the kernel has just confirmed the pages. The rest is the caller's contract.
        unsafe { to.write_unaligned(value) };
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    /// Maps pages. They may lie where others were that the table still knows.
    fn map(pages: usize, protection: i32) -> *mut u8 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, which is never unmapped.
        let at = unsafe { libc::mmap(ptr::null_mut(), pages * PAGE, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        for page in at.addr() / PAGE..at.addr() / PAGE + pages {
            for way in 0..WAYS {
                if is_known_at(place_of(page, way), page, Use::Read) {
                    KNOWN_PAGES[place_of(page, way)].store(0, Ordering::Relaxed);
                }
            }
        }
        at.cast()
    }

    /// Returns whether a word at the address can be read, and be written.
    fn uses(at: *mut u8) -> (bool, bool) {
        (check_read(at.cast::<u64>()).is_ok(), is_writable(at, 8))
    }

    #[test]
    fn pages_are_usable_as_they_are_mapped_however_often_they_are_asked_for() {
        let writable = map(1, libc::PROT_READ | libc::PROT_WRITE);
        let readable = map(1, libc::PROT_READ);
        let unusable = map(1, libc::PROT_NONE);
        for _ in 0..3 {
            assert_eq!(uses(writable), (true, true));
            assert_eq!(uses(readable), (true, false));
            assert_eq!(uses(unusable), (false, false));
            assert_eq!(uses(ptr::null_mut()), (false, false));
        }
    }

    #[test]
    fn only_an_answer_that_confirms_a_page_is_remembered() {
        assert_eq!(confirms(Ok(1)), Ok(true));
        assert_eq!(confirms::<()>(Err(Errno::AGAIN)), Ok(true));
        assert_eq!(confirms::<()>(Err(Errno::FAULT)), Ok(false));
        for filtered in [Errno::PERM, Errno::NOSYS] {
            assert_eq!(confirms::<()>(Err(filtered)), Err(filtered));
        }
    }

    #[test]
    fn what_is_written_if_possible_is_left_alone_on_a_page_that_was_writable() {
        let page = map(1, libc::PROT_READ | libc::PROT_WRITE).cast::<u64>();
        // SAFETY: the page is this test's.
        unsafe {
            assert_eq!(write(page, 1), Ok(()));
            write_if_possible(page, 2);
            assert_eq!(libc::mprotect(page.cast(), PAGE, libc::PROT_READ), 0);
            write_if_possible(page, 3);
            assert_eq!(*page, 2);
        }
    }

    #[test]
    fn more_pages_than_are_remembered_are_usable() {
        let pages = 2 * KNOWN;
        // They are all the same page of zeros.
        let begin = map(pages, libc::PROT_READ);
        for _ in 0..2 {
            for page in 0..pages {
                assert!(check_read(begin.wrapping_add(page * PAGE).cast::<u64>()).is_ok());
            }
        }
        assert_eq!(count_readable(begin, pages * PAGE), pages * PAGE);
    }

    #[test]
    fn a_range_is_usable_up_to_the_first_page_that_is_not() {
        let begin = map(2, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the second page is this test's.
        let cut = unsafe { libc::mprotect(begin.wrapping_add(PAGE).cast(), PAGE, libc::PROT_NONE) };
        assert_eq!(cut, 0);
        for _ in 0..2 {
            assert_eq!(
                count_readable(begin.wrapping_add(PAGE - 24).cast::<u64>(), 8),
                3
            );
        }
    }
}
