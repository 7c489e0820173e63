//! The wait that `poll` and `select` share: entries in the objects' wait queues, and a thread that
//! sleeps until one of them, or the kernel, has news.

use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::os::fd::RawFd;

use upoll_sys::signals::Blocked;

use super::futex::{self, Scope};
use super::thread_wake_fd::ThreadWakeFd;
use super::timeout::{Clock, Deadline, Timeout};
use super::timers::Awaited;
use super::{Outcome, SigSet};
use crate::epoll::ctl::as_set;
use crate::epoll::{Set, handover};
use crate::errno::Errno;
use crate::events::Events;
use crate::file::{InTime, PollTable};
use crate::host::ListeningFd;
use crate::host::own_fds::limit_of_sleep;
use crate::memory::SharedBox;
use crate::open_file::FileRef;
use crate::poll::{Seen, Viewer, on_stack};
use crate::registrations::{self, Inbox};
use crate::schedule;
use crate::sync::{AtomicU32, Ordering, fence_after_rmw};
use crate::target::Target;
use crate::wait::{self, Deferred, Mode, Place, Reply, WaitEntry, WaitQueue, Wake};

/// Stack space for a call, in bytes, and how it is divided (`MAX_STACK_ALLOC` and its parts).
const STACK: usize = 832;
/// For what the call is given and what it finds (`FRONTEND_STACK_ALLOC`).
pub(super) const FRONT: usize = 256;
/// For entries in wait queues (`WQUEUES_STACK_ALLOC`).
const QUEUES: usize = STACK - FRONT;

/// Entries in wait queues that stay on the stack (`N_INLINE_POLL_ENTRIES`).
const INLINE: usize = 9;
/// Entries in each further allocation.
const CHUNK: usize = 64;

#[cfg(not(upoll_loom))]
const _: () = assert!(size_of::<PollEntry>() <= 64 && INLINE * size_of::<PollEntry>() <= QUEUES);

/// A call of `poll` or `select` under way.
pub(super) trait Call {
    /// Polls all user-level objects and keeps what is ready.
    fn poll_all(&mut self, viewer: &mut WaitTable<'_>) -> Seen;

    /// Calls `visit` with what is open of what is waited for, and which events of it are, until it
    /// fails.
    fn try_for_each_target(
        &self,
        visit: &mut dyn FnMut(Target<'_>, Events) -> Result<(), Errno>,
    ) -> Result<(), Errno>;

    /// Calls `visit` with each user-level set that is waited for and may become ready without a wake.
    fn for_each_set(&self, visit: &mut dyn FnMut(&Set)) {
        // It does not fail, as the closure does not.
        let _ = self.try_for_each_target(&mut |target, _| {
            if let Target::File(file) = target
                && let Some(set) = as_set(file.description())
            {
                visit(set);
            }
            Ok(())
        });
    }

    /// Calls `visit` with what becomes ready as time passes, of what is waited for, until it fails.
    fn try_for_each_time_source(
        &self,
        visit: &mut dyn FnMut(&dyn InTime) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.try_for_each_target(&mut |target, _| match target {
            Target::File(file) => file.description().time_source().map_or(Ok(()), &mut *visit),
            _ => Ok(()),
        })
    }

    /// Waits until one of the kernel fds is ready, until `limit` has passed, or until a handler ran
    /// of a signal that `mask` lets through. With `own` fds it ends, too, if one of those is
    /// readable, or the kernel source of a user-level object.
    fn ask(
        &mut self,
        limit: Option<&libc::timespec>,
        mask: Option<&SigSet>,
        own: Option<Own>,
    ) -> Result<Heard, Errno>;

    /// Adds the result of [`ask`](Self::ask), nothing if it failed, to the last poll. Returns the
    /// number of ready entries.
    fn merge(&mut self) -> usize;

    /// Returns whether [`ask`](Self::ask) may end before its limit with nothing to [`merge`](Self::merge).
    fn may_end_for_nothing(&self) -> bool {
        false
    }
}

/// The own fds that a thread sleeps on in the kernel, besides those of the call.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub(super) wake_fd: RawFd,
    /// [`ListeningFd::fd`].
    pub(super) listening_fd: Option<RawFd>,
}

/// The reason why a sleep in the kernel ended, besides the entries that [`Call::merge`] finds.
#[derive(Clone, Copy)]
pub(super) struct Heard {
    /// The thread's wake fd was readable.
    pub(super) rang: bool,
}

/// A thread in `poll` or `select`: what its entries lead to.
struct Poller<'d> {
    state: AtomicU32,
    /// The wake fd to wake; none if the thread sleeps on `state`.
    wake_fd: Option<&'d SharedBox<ThreadWakeFd>>,
}

/// It will poll once more before it sleeps.
const AWAKE: u32 = 0;
/// It sleeps, or is about to: a wakeup has to wake it.
const ASLEEP: u32 = 1;
/// A wakeup came since the last poll.
const WOKEN: u32 = 2;

impl Poller<'_> {
    /// Announces that the thread is about to sleep. Returns false if a wake came since it was last
    /// [awake](Self::set_awake).
    fn prepare_to_sleep(&self) -> bool {
        self.state
            .compare_exchange(AWAKE, ASLEEP, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Poll the objects afterwards: later wakeups are noticed, and the poll sees what earlier
    /// wakeups have published.
    fn set_awake(&self) {
        self.state.swap(AWAKE, Ordering::SeqCst);
        fence_after_rmw();
    }

    fn wake_thread(&self, deferred: &mut Deferred) {
        if self.state.swap(WOKEN, Ordering::SeqCst) != ASLEEP {
            return;
        }
        match self.wake_fd {
            // The word may be gone by the time this runs; see `super::wake_thread`.
            None => deferred.push(futex::wake_one, futex::address(&self.state)),
            Some(wake_fd) => deferred.push_shared(wake_fd),
        }
    }

    fn sleep(&self, deadline: Deadline) -> Outcome {
        while self.state.load(Ordering::Acquire) == ASLEEP {
            match futex::wait(&self.state, ASLEEP, deadline, Scope::Private) {
                Outcome::Woken => {}
                ended => return ended,
            }
        }
        Outcome::Woken
    }
}

/// A wake reached entries that are kept between calls, of which this is one.
///
/// # Safety
/// `poller` leads to a [`Poller`].
unsafe fn wake_attached(poller: NonNull<()>, deferred: &mut Deferred) {
    // SAFETY: the caller's contract.
    unsafe { poller.cast::<Poller<'_>>().as_ref() }.wake_thread(deferred);
}

/// A place in a wait queue (`struct poll_table_entry`). The entry's owner word holds the events
/// that are of interest.
#[repr(C)]
struct PollEntry {
    /// First, so that a wake finds the rest.
    entry: WaitEntry,
    poller: NonNull<Poller<'static>>,
}

/// A wake reached a thread in `poll` or `select` (`pollwake`).
///
/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is a [`PollEntry`]'s.
unsafe fn on_wake_poll(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: `entry` is the first field of a `PollEntry`, which is unhooked, under the lock that
    // is held here, before it or its poller ends.
    let (wanted, poller) = unsafe {
        let entry = entry.cast::<PollEntry>().as_ref();
        let wanted = entry.entry.owner_word.load(Ordering::Relaxed);
        (Events::from_bits_retain(wanted), entry.poller.as_ref())
    };
    if !wake.key.is_empty() && !wake.key.intersects(wanted) {
        return Reply::Declined;
    }
    if wake.mode != Mode::Query {
        poller.wake_thread(wake.deferred);
    }
    Reply::Woken
}

/// The entries of a call, one for each queue that an object registers: the first few in place,
/// then on the heap (`struct poll_wqueues`).
///
/// It does not move once an entry is hooked. Dropping it takes all entries out.
pub(super) struct WaitTable<'p> {
    poller: &'p Poller<'p>,
    /// Looking at an object hooks entries into its queues. Off once something is ready.
    registers: bool,
    /// There was no memory for an entry.
    failed: bool,
    used: usize,
    inline: [MaybeUninit<PollEntry>; on_stack(INLINE)],
    /// Filled up to their capacity and never beyond, so that entries do not move.
    chunks: Vec<Vec<PollEntry>>,
    /// The place where entries that are kept between calls leave their marks, if the call has such.
    inbox: Option<NonNull<Inbox>>,
}

impl<'p> WaitTable<'p> {
    /// # Safety
    /// The table does not move before it is dropped, and it is dropped.
    unsafe fn new(poller: &'p Poller<'p>) -> Self {
        WaitTable {
            poller,
            registers: true,
            failed: false,
            used: 0,
            inline: [const { MaybeUninit::uninit() }; on_stack(INLINE)],
            chunks: Vec::new(),
            inbox: None,
        }
    }

    /// From now on marks in `inbox` wake the call's thread, too. Poll afterwards.
    ///
    /// # Safety
    /// `inbox` outlives this table.
    pub(super) unsafe fn attach(&mut self, inbox: &Inbox) {
        if self.inbox.is_none() {
            self.inbox = Some(NonNull::from(inbox));
            let sleeper = registrations::Sleeper {
                wake_thread: wake_attached,
                whom: NonNull::from(self.poller).cast(),
            };
            // SAFETY: the poller outlives this table, whose drop detaches it.
            unsafe { inbox.attach(sleeper) };
        }
    }

    /// # Safety
    /// `queue` outlives this table.
    unsafe fn hook(&mut self, queue: *const WaitQueue, wanted: Events) {
        let entry = PollEntry {
            entry: WaitEntry::new(on_wake_poll),
            poller: NonNull::from(self.poller).cast(),
        };
        entry
            .entry
            .owner_word
            .store(wanted.bits(), Ordering::Relaxed);
        let entry = if let Some(place) = self.inline.get_mut(self.used) {
            self.used += 1;
            &*place.write(entry)
        } else {
            let Some(chunk) = self.chunk_with_room() else {
                self.failed = true;
                return;
            };
            chunk.push(entry);
            &chunk[chunk.len() - 1]
        };
        // SAFETY: the entry is fresh and stays where it is, as the table does not move and a chunk
        // does not grow; the table's drop unhooks it. The caller vouches for the queue.
        unsafe { entry.entry.hook(queue, Place::Shared) };
    }

    /// Registers with the schedules that are not among those that `awaited` has. Look at their next times afterwards.
    ///
    /// # Safety
    /// `awaited` outlives this table.
    unsafe fn await_times(&mut self, call: &impl Call, awaited: &mut Awaited) -> Result<(), Errno> {
        if !schedule::any_has_clock() {
            return Ok(());
        }
        call.try_for_each_time_source(&mut |source| {
            let mut added = Ok(());
            source.for_each_schedule(&mut |schedule| {
                added = added.and_then(|()| awaited.add(schedule)).map(|is_new| {
                    if is_new {
                        // SAFETY: `awaited` keeps the schedule that the queue is part of.
                        unsafe { self.hook(&raw const schedule.sooner, Events::IN) };
                    }
                });
            });
            added
        })
    }

    fn chunk_with_room(&mut self) -> Option<&mut Vec<PollEntry>> {
        let full = self
            .chunks
            .last()
            .is_none_or(|chunk| chunk.len() == chunk.capacity());
        if full {
            let mut chunk = Vec::new();
            chunk.try_reserve_exact(CHUNK).ok()?;
            self.chunks.try_reserve(1).ok()?;
            self.chunks.push(chunk);
        }
        self.chunks.last_mut()
    }
}

impl Viewer for WaitTable<'_> {
    fn view(&mut self, file: FileRef<'_>, wanted: Events) -> Events {
        let object = file.description().object();
        // A thread that sleeps for a shared counter is woken by the kernel.
        if !self.registers || file.description().shared_source().is_some() {
            return object.poll(&mut PollTable::without_waiter());
        }
        // SAFETY: the queue is the object's, which the caller of `poll` or `select` borrows for the
        // whole call; the table is dropped before the call ends.
        let mut register = |queue: &WaitQueue| unsafe { self.hook(queue, wanted) };
        // Wakers of others run when the object's `poll` has released its locks.
        let _scope = wait::Scope::enter();
        object.poll(&mut PollTable::new(&mut register))
    }

    fn hit(&mut self) {
        self.registers = false;
    }
}

impl Drop for WaitTable<'_> {
    fn drop(&mut self) {
        // A waker that panics does so when all entries are out.
        let _scope = wait::Scope::enter();
        for entry in &self.inline[..self.used] {
            // SAFETY: the first `used` were written.
            unsafe { entry.assume_init_ref() }.entry.unhook();
        }
        for entry in self.chunks.iter().flatten() {
            entry.entry.unhook();
        }
        if let Some(inbox) = self.inbox {
            // SAFETY: it outlives this table (`attach`'s contract).
            unsafe { inbox.as_ref() }.detach();
        }
    }
}

pub(super) const ZERO: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Returns whether the first poll, which leaves no trace, is all that a call has to do.
#[inline]
pub(super) fn is_final(seen: Seen, timeout: Timeout, mask: Option<&SigSet>) -> bool {
    seen.kernel == 0 && (seen.ready > 0 || (timeout.is_now() && mask.is_none()))
}

/// Finishes a call whose first poll found `seen`: passes its kernel fds to the kernel, and waits if
/// nothing is ready. Returns the number of ready entries.
#[inline(never)]
pub(super) fn wait(
    call: &mut impl Call,
    seen: Seen,
    timeout: Timeout,
    mask: Option<&SigSet>,
) -> Result<usize, Errno> {
    if seen.ready > 0 {
        return with_kernel(call, seen);
    }
    if timeout.is_now() {
        return ask_once(call, Some(&ZERO), mask);
    }
    if seen.objects == 0 && timeout.clock() == Clock::Monotonic && !call.may_end_for_nothing() {
        return ask_once(call, timeout.as_timespec().as_ref(), mask);
    }
    let deadline = timeout.deadline();
    // The kernel swaps masks for each sleep; what comes between two is held for the next.
    let _held = mask.map(|_| Blocked::sent());
    if seen.objects == 0 {
        return wait_for_kernel(call, deadline, mask);
    }
    let mut seen = seen;
    if seen.sources == 0 {
        // The first look does not count them.
        call.try_for_each_target(&mut |target, wanted| {
            if let Target::File(file) = target {
                seen.count_source(file.description(), wanted);
            }
            Ok(())
        })?;
    }
    let mut in_kernel = seen.kernel + seen.sources > 0 || mask.is_some();
    call.for_each_set(&mut Set::recheck_rotating);
    loop {
        let ready = if in_kernel {
            let wake_fd = ThreadWakeFd::of_this_thread()?;
            wait_for_any(call, deadline, mask, Some(&wake_fd), seen.shared)
        } else {
            wait_for_any(call, deadline, mask, None, 0)
        };
        match ready {
            Ok(None) => in_kernel = true,
            Ok(Some(ready)) if ready > 0 => {
                // The thread may have been chosen for an event.
                call.for_each_set(&mut handover::remember);
                return Ok(ready);
            }
            Ok(Some(_)) => return recheck(call),
            Err(errno) => {
                // A wake may have chosen the thread after its last look.
                call.for_each_set(&mut handover::forward_unseen);
                return Err(errno);
            }
        }
    }
}

/// Polls once more after the limit, when no wakeup reaches this thread any more. It may have been
/// chosen for an event of a rotating set after its last poll, and takes what other workers have
/// left.
fn recheck(call: &mut impl Call) -> Result<usize, Errno> {
    let mut takes_turns = false;
    call.for_each_set(&mut |set| {
        takes_turns |= set.takes_turns();
        set.recheck_rotating();
    });
    if !takes_turns {
        return Ok(0);
    }
    let poller = Poller {
        state: AtomicU32::new(AWAKE),
        wake_fd: None,
    };
    // SAFETY: it stays in this frame.
    let mut table = unsafe { WaitTable::new(&poller) };
    table.registers = false;
    let seen = call.poll_all(&mut table);
    if seen.ready == 0 {
        return Ok(0);
    }
    call.for_each_set(&mut handover::remember);
    with_kernel(call, seen)
}

/// Adds what is ready in the kernel to what is ready here. The mask of a call that finds something
/// ready lets no signal through, so there is no need to apply it.
fn with_kernel(call: &mut impl Call, seen: Seen) -> Result<usize, Errno> {
    if seen.kernel == 0 {
        return Ok(seen.ready);
    }
    match call.ask(Some(&ZERO), None, None) {
        Ok(_) | Err(Errno::INTR) => Ok(seen.ready + call.merge()),
        Err(errno) => Err(errno),
    }
}

fn ask_once(
    call: &mut impl Call,
    limit: Option<&libc::timespec>,
    mask: Option<&SigSet>,
) -> Result<usize, Errno> {
    let asked = call.ask(limit, mask, None);
    let ready = call.merge();
    asked.map(|_| ready)
}

/// Nothing but kernel fds, or nothing at all, is waited for, by the wall clock.
fn wait_for_kernel(
    call: &mut impl Call,
    deadline: Deadline,
    mask: Option<&SigSet>,
) -> Result<usize, Errno> {
    loop {
        let ready = ask_once(call, deadline.next_sleep().as_ref(), mask)?;
        if ready > 0 || deadline.has_passed() {
            return Ok(ready);
        }
    }
}

/// Drains the listening fd, and arms the notifiers of each shared eventfd. Poll the eventfds
/// afterwards.
fn listen_on(call: &impl Call, listening_fd: &ListeningFd) -> Result<(), Errno> {
    listening_fd.quiet();
    call.try_for_each_target(&mut |target, wanted| {
        ListeningFd::arm(target, wanted);
        Ok(())
    })
}

/// Waits for user-level objects and, with the thread's wake fd, for kernel fds.
///
/// Returns None if a wake fd is needed, or another one, by now.
fn wait_for_any(
    call: &mut impl Call,
    deadline: Deadline,
    mask: Option<&SigSet>,
    wake_fd: Option<&SharedBox<ThreadWakeFd>>,
    shared: usize,
) -> Result<Option<usize>, Errno> {
    let poller = Poller {
        state: AtomicU32::new(AWAKE),
        wake_fd,
    };
    let mut awaited = Awaited::default();
    // SAFETY: it stays in this frame.
    let mut table = unsafe { WaitTable::new(&poller) };
    let mut listening_fd = None;
    if shared > 0 && wake_fd.is_some() {
        let new = ListeningFd::new()?;
        call.try_for_each_target(&mut |target, wanted| new.listen_to(target, wanted))?;
        listen_on(call, listening_fd.insert(new))?;
    }
    // Register, then poll: a thread that published something before that did not see the entries.
    let mut seen = call.poll_all(&mut table);
    table.registers = false;
    loop {
        if seen.ready > 0 {
            return with_kernel(call, seen).map(Some);
        }
        // SAFETY: it ends after the table.
        unsafe { table.await_times(call, &mut awaited)? };
        if table.failed {
            return Err(Errno::NOMEM);
        }
        if wake_fd.is_none() && seen.sources > 0 {
            return Ok(None);
        }
        let may_sleep = poller.prepare_to_sleep();
        let Some(wake_fd) = wake_fd else {
            let outcome = if may_sleep {
                poller.sleep(awaited.limit(deadline))
            } else {
                Outcome::Woken
            };
            poller.set_awake();
            awaited.fire_due();
            // Ready entries take precedence over a limit or a signal, whatever ended the sleep.
            seen = call.poll_all(&mut table);
            match outcome {
                _ if seen.ready > 0 => {}
                Outcome::Interrupted => return Err(Errno::INTR),
                Outcome::Woken | Outcome::TimedOut if !deadline.has_passed() => {}
                Outcome::Woken | Outcome::TimedOut => return Ok(Some(0)),
            }
            continue;
        };
        if !wake_fd.is_in_place()
            || listening_fd
                .as_ref()
                .is_some_and(|listening_fd| !listening_fd.is_in_place())
        {
            return Ok(None);
        }
        let limit = if may_sleep {
            limit_of_sleep(awaited.limit(deadline).next_sleep())
        } else {
            Some(ZERO)
        };
        let own = Own {
            wake_fd: wake_fd.fd(),
            listening_fd: listening_fd.as_ref().map(ListeningFd::fd),
        };
        let asked = call.ask(limit.as_ref(), mask, Some(own));
        poller.set_awake();
        awaited.fire_due();
        if mask.is_some()
            && let Err(errno) = asked
        {
            // The handler has run of a signal that only the mask let through. EINTR is how the
            // caller learns of it.
            call.merge();
            return Err(errno);
        }
        // The handler of a signal may have forked, and this is the child.
        let is_here = wake_fd.is_of_this_process();
        let is_lost = matches!(asked, Ok(Heard { rang: true })) && !wake_fd.quiet();
        if let Some(listening_fd) = &listening_fd {
            listen_on(call, listening_fd)?;
        }
        seen = call.poll_all(&mut table);
        let kernel = call.merge();
        match asked {
            _ if seen.ready + kernel > 0 => return Ok(Some(seen.ready + kernel)),
            _ if !is_here => return Err(Errno::INTR),
            Ok(_) if deadline.has_passed() => return Ok(Some(0)),
            // The program closed it: the call goes on with another one.
            Ok(_) if is_lost => return Ok(None),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(all(test, not(upoll_loom)))]
mod tests {
    use std::io::{PipeReader, Read, Write};
    use std::os::fd::{AsFd, BorrowedFd};
    use std::time::Duration;

    use crate::file::{Description, InKernel, KernelSource, Pollable};
    use crate::wait::WaitQueue;
    use crate::{
        Errno, EventFd, Events, FdSet, File, PollContext, PollFd, PollTable, Source, Timeout,
    };

    const LONG: Duration = Duration::from_secs(60);

    /// Ready when its pipe is; gets the pipe late.
    #[derive(Default)]
    struct PartlyInKernel {
        pipe: std::sync::OnceLock<PipeReader>,
        changed: WaitQueue,
    }

    impl Pollable for PartlyInKernel {
        fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
            table.register(&self.changed);
            let Some(pipe) = self.pipe.get() else {
                return Events::empty();
            };
            let mut fds = [PollFd::new(pipe, Events::IN)];
            crate::poll(&mut fds, Duration::ZERO).unwrap();
            fds[0].revents()
        }

        fn kernel_source(&self) -> Option<KernelSource<'_>> {
            Some(KernelSource(self))
        }
    }

    impl InKernel for PartlyInKernel {
        fn awaited_fd(&self, _: &Description, _: Events) -> Option<BorrowedFd<'_>> {
            Some(self.pipe.get()?.as_fd())
        }
    }

    fn poll_one(file: &File<PartlyInKernel>, timeout: impl Into<Timeout>) -> Result<usize, Errno> {
        crate::poll(&mut [PollFd::new(file, Events::IN)], timeout)
    }

    fn select_one(file: &File<PartlyInKernel>, limit: Duration) -> Result<usize, Errno> {
        let mut read = FdSet::from_iter([0]);
        let mut timeout = limit.into();
        let resolve = |_| Some(file.target());
        crate::select(1, Some(&mut read), None, None, &mut timeout, resolve)
    }

    #[test]
    fn a_change_in_a_files_kernel_source_wakes_a_sleeper() {
        for wait in [
            |file: &_| poll_one(file, LONG),
            |file: &_| select_one(file, LONG),
            |file: &_| PollContext::new().poll(&mut [PollFd::new(file, Events::IN)], LONG),
        ] {
            let (reader, mut writer) = std::io::pipe().unwrap();
            let file = File::new(PartlyInKernel::default());
            assert!(file.pipe.set(reader).is_ok());
            assert_eq!(poll_one(&file, Duration::from_millis(1)), Ok(0));
            let thread = std::thread::spawn({
                let file = file.clone();
                move || wait(&file)
            });
            writer.write_all(b"x").unwrap();
            assert_eq!(thread.join().unwrap(), Ok(1));
            file.pipe.get().unwrap().read_exact(&mut [0]).unwrap();
            assert_eq!(select_one(&file, Duration::from_millis(1)), Ok(0));
        }
    }

    #[test]
    fn a_kernel_source_that_comes_late_reaches_threads_that_sleep_without_it() {
        for keeps in [false, true] {
            let (reader, mut writer) = std::io::pipe().unwrap();
            let file = File::new(PartlyInKernel::default());
            let other = EventFd::new(0).unwrap();
            let thread = std::thread::spawn({
                let (file, other) = (file.clone(), other.clone());
                move || {
                    let mut fds = [
                        PollFd::new(&other, Events::IN),
                        PollFd::new(&file, Events::IN),
                    ];
                    let ready = if keeps {
                        PollContext::new().poll(&mut fds, LONG)
                    } else {
                        crate::poll(&mut fds, LONG)
                    };
                    (ready, fds[0].revents(), fds[1].revents())
                }
            });
            while !file.changed.is_watched() {
                std::thread::yield_now();
            }
            assert!(file.pipe.set(reader).is_ok());
            file.changed.wake(Events::IN);
            // Time to go to sleep again.
            std::thread::sleep(Duration::from_millis(20));
            let begun = std::time::Instant::now();
            writer.write_all(b"x").unwrap();
            let found = (Ok(1), Events::empty(), Events::IN);
            assert_eq!(thread.join().unwrap(), found);
            assert!(begun.elapsed() < LONG / 2, "it slept until its limit");
        }
    }

    #[test]
    fn a_kernel_source_that_comes_between_calls_is_polled_without_a_wake() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let file = File::new(PartlyInKernel::default());
        let mut context = PollContext::new();
        let mut call = || context.poll(&mut [PollFd::new(&file, Events::IN)], Duration::ZERO);
        assert_eq!(call(), Ok(0));
        assert!(file.pipe.set(reader).is_ok());
        file.changed.wake(Events::empty());
        assert_eq!(call(), Ok(0));
        writer.write_all(b"x").unwrap();
        assert_eq!(call(), Ok(1));
        file.pipe.get().unwrap().read_exact(&mut [0]).unwrap();
        assert_eq!(call(), Ok(0));
        writer.write_all(b"x").unwrap();
        assert_eq!(call(), Ok(1));
    }
}
