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
use crate::patience::Patience;
use crate::pour::{self, Ends};
use crate::set::NumberedSet;
use crate::signals::{HeldBack, Section};
use crate::table::{self, Held};

/// What cannot be handed over (yet).
const NOT_SUPPORTED: Errno = Errno::from_raw(libc::EOPNOTSUPP);

/// Hands the object that `fd` stands for over to the kernel, with all its numbers, and in all sets
/// that watch it. A number of the kernel's is left as it is.
///
/// Calls that block on it go on with the kernel object; sets report it once more if it is ready.
///
/// # Errors
/// - `EBADF`: the number is not open.
/// - `EOPNOTSUPP`: an eventfd with a maximum, an object of the embedder's own, or a set that watches
///   one of these.
/// - `EBUSY`: a signal handler asks for it in the midst of a call on it.
/// - `EPERM`, `ENOMEM`, `EMFILE`, `ENFILE`: the kernel does not give what it takes; the object is as
///   it was.
pub fn demote(fd: RawFd) -> Result<(), Errno> {
    let _section = Section::begin();
    match table::get(fd) {
        None => check_open(fd),
        Some(object) => match &object {
            Object::EventFd(counter) if can_go(counter) => demote_eventfd(&object, counter),
            Object::PipeReader(_) | Object::PipeWriter(_) | Object::Socket(_) => {
                demote_ends(&object)
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

/// The kernel's eventfd has no maximum, and its count is this process's alone no more.
fn can_go(counter: &EventFd) -> bool {
    !counter.is_shared() && counter.maximum() == u64::MAX
}

/// Hands over whatever can be; the rest stays user-level.
pub fn demote_all() {
    let _section = Section::begin();
    let is_set = |fd: &RawFd| {
        let is_set = |object: &Object| matches!(object, Object::Epoll(_));
        table::with(*fd, is_set).unwrap_or(false)
    };
    // Sets come last: until then other threads may add members.
    let others = table::numbers(0, u32::MAX).filter(|fd| !is_set(fd));
    for fd in others.chain(table::numbers(0, u32::MAX)) {
        // What cannot be handed over is lost to other processes.
        let _ = demote(fd);
    }
}

/// Puts eventfds with a maximum where a child of a fork has them, too.
pub(crate) fn share_all() {
    let _section = Section::begin();
    for fd in table::numbers(0, u32::MAX) {
        if let Some(object) = table::get(fd)
            && let Object::EventFd(counter) = &object
            && !counter.is_shared()
        {
            // Without memory or descriptors for it the child does not get it.
            let _ = share(&object, counter);
        }
    }
}

fn share(object: &Object, counter: &EventFd) -> Result<(), Errno> {
    let _under_way = UnderWay::begin();
    let held = table::hold(object)?;
    if held.numbers().is_empty() {
        return Ok(());
    }
    let interests = take_interests(object, &held);
    let shared = match counter.to_shared() {
        Ok(Some(shared)) => Object::EventFd(shared),
        not_done => {
            give_back(&interests);
            return not_done.map(drop);
        }
    };
    for interest in interests {
        interest.give_to(&shared);
    }
    held.release(Some(&shared));
    Ok(())
}

/// Hands over an object of ours that no set watches, for which no set needs descriptors.
///
/// # Errors
/// `EINVAL`: it is not one of ours. `EBUSY`: a set watches it. Else as [`demote`].
pub(crate) fn demote_unwatched(fd: RawFd) -> Result<(), Errno> {
    let _section = Section::begin();
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
    // Before its numbers are held: in the child of a fork that another thread makes meanwhile they would be
    // held for ever, by nobody, instead of standing for a set of the child's own.
    if !set.is_passive() && set.as_epoll().len_in_core() > 0 {
        return Err(NOT_SUPPORTED);
    }
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
    held.release(None);
    Ok(())
}

/// One at a time: each waits for numbers that another one might hold. Not a `Mutex`: the child of a
/// fork takes it from a thread that it does not have.
static IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Signals are held back: a handler that hands something over would wait for its own thread.
struct UnderWay {
    _held_back: HeldBack,
}

impl UnderWay {
    fn begin() -> Self {
        let mut patience = Patience::new();
        loop {
            let held_back = HeldBack::begin();
            if !IS_UNDER_WAY.swap(true, Ordering::Acquire) {
                return UnderWay {
                    _held_back: held_back,
                };
            }
            drop(held_back);
            patience.wait();
        }
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
        give_back(&interests);
        return Err(NOT_SUPPORTED);
    };
    // The kernel's count is 0, and less than this fits. Nobody has signalled more than 2^64 times.
    let count = count.min(u64::MAX - 1);
    // SAFETY: `count` is live.
    unsafe { call!(write, number, &raw const count, size_of::<u64>()) }?;
    for interest in interests {
        interest.give_to_the_kernel(&held);
    }
    held.release(None);
    Ok(())
}

/// Both ends of a pipe, or both sockets of a pair, change hands together.
fn demote_ends(object: &Object) -> Result<(), Errno> {
    let _under_way = UnderWay::begin();
    let held = table::hold(object)?;
    let Some((_, first)) = held.objects().next() else {
        return Ok(());
    };
    // What is read of a pipe; or the first one of two sockets.
    let is_one = |end: &Object| match end {
        Object::PipeReader(_) => true,
        Object::Socket(_) => end.is_same_file(first),
        _ => false,
    };
    let (one, other): (Vec<_>, Vec<_>) = held.objects().partition(|(_, end)| is_one(end));
    let interests: Vec<_> = [one.first(), other.first()]
        .into_iter()
        .flatten()
        .flat_map(|(_, end)| take_interests(end, &held))
        .collect();
    let numbers = |ends: &[(RawFd, &Object)]| ends.iter().map(|&(fd, _)| fd).collect();
    let ends = Ends {
        one: numbers(&one),
        other: numbers(&other),
    };
    let retired = match first {
        Object::PipeReader(end) => {
            let capacity = end.capacity();
            end.retire(|pages| pour::pipe(pages, capacity, &ends))
        }
        Object::PipeWriter(end) => {
            let capacity = end.capacity();
            end.retire(|pages| pour::pipe(pages, capacity, &ends))
        }
        Object::Socket(socket) => socket.retire(|contents| pour::sockets(&contents, &ends)),
        _ => return Err(NOT_SUPPORTED),
    };
    if let Err(errno) = retired {
        give_back(&interests);
        return Err(errno);
    }
    for interest in interests {
        interest.give_to_the_kernel(&held);
    }
    held.release(None);
    Ok(())
}

/// What a set wants of an object that is being handed over.
struct Interest {
    object: Object,
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
                    object: object.clone(),
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

/// The objects stay as they were, in the sets as well.
fn give_back(interests: &[Interest]) {
    for interest in interests {
        interest.add(&interest.object);
    }
}

impl Interest {
    fn add(&self, object: &Object) {
        let target = Target::File(object.as_file_ref(self.number));
        // If there is no memory for it now, it is lost.
        let _ = self.set.as_epoll().ctl(Op::Add, target, self.event);
    }

    /// Has the set keep members that are the kernel's. False if it has no number left by which
    /// anybody could wait in it, or there are no descriptors.
    fn prepare(&self) -> bool {
        let adopted = table::with(self.epfd, |object| match object {
            Object::Epoll(set) if Arc::ptr_eq(set, &self.set) => set.adopt(self.epfd).is_ok(),
            _ => false,
        });
        adopted == Some(true)
    }

    /// Has the set watch `successor` under the same number.
    fn give_to(self, successor: &Object) {
        // One that is shared stirs in the kernel.
        if self.prepare() {
            self.add(successor);
        }
    }

    fn give_to_the_kernel(self, held: &Held) {
        if !self.prepare() {
            return;
        }
        let all = held
            .objects()
            .filter(|(_, object)| object.is_same_file(&self.object));
        let all: Vec<RawFd> = all.map(|(number, _)| number).collect();
        // The number may be closed while another one keeps the file open; that one does as well.
        let own = all.iter().filter(|&&number| number == self.number);
        for &number in own.chain(&all) {
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
