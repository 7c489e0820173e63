//! Handing an object over to the kernel: its state is poured into the kernel object behind it, and
//! from then on the kernel serves its numbers.
//!
//! That is for when it can be seen from outside of this process: by the child of a fork, by a program
//! that inherits the number, by whoever is sent it. A program cannot tell, except by speed.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use upoll::{Errno, Event, EventFd, Op, Target};

use crate::kernel::{call, check_open};
use crate::object::Object;
use crate::set::NumberedSet;
use crate::table::{self, Held};

/// What cannot be handed over (yet).
const NOT_SUPPORTED: Errno = Errno::from_raw(libc::EOPNOTSUPP);

/// Hands the object that `fd` stands for over to the kernel, with all its numbers, and in all sets
/// that watch it. A number of the kernel's is left as it is.
///
/// Calls that block on it go on with the kernel object; sets report it once more if it is ready.
///
/// # Errors
/// `EBADF`: the number is not open. `EOPNOTSUPP`: only eventfds without a maximum can be handed
/// over. `EBUSY`: a signal handler asks for it in the midst of a call on it.
pub fn demote(fd: RawFd) -> Result<(), Errno> {
    match table::get(fd) {
        None => check_open(fd),
        Some(object) => match &object {
            Object::EventFd(counter) if counter.maximum() == u64::MAX => {
                demote_eventfd(&object, counter)
            }
            Object::Epoll(set) if !set.rotates() => {
                if !set.is_passive() {
                    demote_members(&object, set);
                }
                demote_set(&object, set)
            }
            _ => Err(NOT_SUPPORTED),
        },
    }
}

/// Hands over whatever can be; the rest stays user-level.
pub fn demote_all() {
    for fd in table::numbers(0, u32::MAX) {
        // What cannot be handed over is lost to other processes.
        let _ = demote(fd);
    }
}

/// Hands over an object of ours that no set watches, for which no set needs descriptors.
///
/// # Errors
/// `EINVAL`: it is not one of ours. `EBUSY`: a set watches it. Else as [`demote`].
pub(crate) fn demote_unwatched(fd: RawFd) -> Result<(), Errno> {
    let object = table::get(fd).ok_or(Errno::INVAL)?;
    let is_watched = table::numbers(0, u32::MAX).any(|epfd| {
        let set = table::get(epfd);
        let interests = |set: &NumberedSet| set.as_epoll().interests_in(object.as_file_ref(0));
        matches!(&set, Some(Object::Epoll(set)) if !interests(set).is_empty())
    });
    match is_watched {
        true => Err(Errno::BUSY),
        false => demote(fd),
    }
}

/// Hands over what a set watches, sets below it included.
fn demote_members(object: &Object, set: &NumberedSet) {
    for fd in table::numbers(0, u32::MAX) {
        let Some(member) = table::get(fd) else {
            continue;
        };
        let is_itself = member.as_file_ref(0).is_same_file(object.as_file_ref(0));
        let watches = !set
            .as_epoll()
            .interests_in(member.as_file_ref(0))
            .is_empty();
        if watches && !is_itself {
            // If it cannot be, the set cannot either.
            let _ = demote(fd);
        }
    }
}

/// The kernel set behind has all its members but those of ours, of which none may be left.
fn demote_set(object: &Object, set: &NumberedSet) -> Result<(), Errno> {
    let _under_way = UnderWay::begin();
    let held = table::hold(object)?;
    let Some(&number) = held.numbers().first() else {
        return Ok(());
    };
    if set.as_epoll().len_in_core() > 0 {
        return Err(NOT_SUPPORTED);
    }
    let interests = take_interests(object, &held);
    set.retire(number)?;
    for interest in interests {
        interest.give_to_the_kernel(&held);
    }
    release(object, held)
}

/// The numbers are the kernel's, and those that were being made meanwhile.
fn release(object: &Object, held: Held) -> Result<(), Errno> {
    held.release();
    loop {
        let late = table::hold(object)?;
        if late.numbers().is_empty() {
            return Ok(());
        }
        late.release();
    }
}

/// One at a time: each waits for numbers that another one might hold. Not a `Mutex`: the child of a
/// fork takes it from a thread that it does not have.
static IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);

struct UnderWay;

impl UnderWay {
    fn begin() -> Self {
        while IS_UNDER_WAY.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        UnderWay
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        IS_UNDER_WAY.store(false, Ordering::Release);
    }
}

/// In the child of a fork: what another thread was doing is not under way here.
pub(crate) fn forget_other_threads() {
    IS_UNDER_WAY.store(false, Ordering::Relaxed);
}

fn demote_eventfd(object: &Object, counter: &EventFd) -> Result<(), Errno> {
    let _under_way = UnderWay::begin();
    let held = table::hold(object)?;
    let Some(&number) = held.numbers().first() else {
        // Somebody else was quicker, or it was closed.
        return Ok(());
    };
    let interests = take_interests(object, &held);
    let Some(count) = counter.retire() else {
        // It got a maximum meanwhile.
        for interest in &interests {
            let target = Target::File(object.as_file_ref(interest.number));
            let set = interest.set.as_epoll();
            // It was there a moment ago; if there is no memory for it now, it is lost.
            let _ = set.ctl(Op::Add, target, interest.event);
        }
        return Err(NOT_SUPPORTED);
    };
    // The kernel's count is 0, and less than this fits. Nobody has signalled more than 2^64 times.
    let count = count.min(u64::MAX - 1);
    // SAFETY: `count` is live.
    unsafe { call!(write, number, &raw const count, size_of::<u64>()) }?;
    for interest in interests {
        interest.give_to_the_kernel(&held);
    }
    release(object, held)
}

/// What a set wants of an object that is being handed over.
struct Interest {
    set: Arc<NumberedSet>,
    /// A number of the set.
    epfd: RawFd,
    number: RawFd,
    event: Event,
}

/// Takes the object out of all sets.
fn take_interests(object: &Object, held: &Held) -> Vec<Interest> {
    let mut taken = Vec::new();
    for epfd in table::numbers(0, u32::MAX) {
        // Its own numbers cannot be looked up now.
        if held.numbers().contains(&epfd) {
            continue;
        }
        let Some(Object::Epoll(set)) = table::get(epfd) else {
            continue;
        };
        for (number, event) in set.as_epoll().interests_in(object.as_file_ref(0)) {
            let target = Target::File(object.as_file_ref(number));
            // A set has several numbers: who deletes it first has it. So does a thread that deletes
            // it just now.
            let deleted = set.as_epoll().ctl(Op::Del, target, Event::default());
            if deleted.is_ok() {
                taken.push(Interest {
                    set: Arc::clone(&set),
                    epfd,
                    number,
                    event,
                });
            }
        }
    }
    taken
}

impl Interest {
    fn give_to_the_kernel(self, held: &Held) {
        let adopted = table::with(self.epfd, |object| match object {
            Object::Epoll(set) if Arc::ptr_eq(set, &self.set) => set.adopt(self.epfd).is_ok(),
            _ => false,
        });
        if adopted != Some(true) {
            // The set has no number left by which anybody could wait in it, or no descriptors.
            return;
        }
        // The number may be closed while another one keeps the file open; that one does as well.
        let own = held
            .numbers()
            .iter()
            .filter(|&&number| number == self.number);
        for &number in own.chain(held.numbers()) {
            // SAFETY: it is held open by the table.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            let target = Target::Kernel(fd);
            let set = self.set.as_epoll();
            if set.ctl(Op::Add, target, self.event) != Err(Errno::EXIST) {
                return;
            }
        }
    }
}
