//! `epoll(7)` and `eventfd(2)`.

use std::ffi::{c_int, c_uint};

use libc::{sigset_t, timespec};
use upoll::{CreateFlags, Errno, Event};
use upoll_fds::internal::{self, plain_sets, takeover};
use upoll_fds::{EpollCtlCmd, EpollWaitParams};

use crate::cancel::exported;
use crate::next::pass_on;
use crate::settings;
use crate::stats::{self, Call};
use crate::{files, handlers, kernel, top};
use upoll_fds::internal::errno::{MASK_SIZE, give, set_errno};

exported! {
    "`eventfd(2)`" eventfd(initial: c_uint, flags: c_int) -> c_int = eventfd_body;
    "`epoll_create(2)`" epoll_create(size: c_int) -> c_int = epoll_create_body;
    "`epoll_create1(2)`; `flags` may hold `EPOLL_ROTATE`." epoll_create1(flags: c_int) -> c_int = epoll_create1_body;
    "`epoll_ctl(2)`" epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *const Event) -> c_int = epoll_ctl_body;
    "`epoll_ctl_batch`, as in `upoll.h`" epoll_ctl_batch(
        epfd: c_int, flags: c_int, count: c_int, commands: *mut EpollCtlCmd
    ) -> c_int = epoll_ctl_batch_body;
    "`epoll_pwait1`, as in `upoll.h`" epoll_pwait1(
        epfd: c_int, flags: c_int, events: *mut Event, room: c_int, params: *const EpollWaitParams
    ) -> c_int = interruptible epoll_pwait1_body;
}

#[inline(never)]
fn eventfd_body(initial: c_uint, flags: c_int) -> c_int {
    let made = handlers::make_user_level(
        || settings::is_user_level(Call::EventFd),
        || upoll_fds::eventfd(initial, flags),
    );
    stats::count_as(Call::EventFd, made.is_some());
    match made {
        Some(made) => give(made.inspect(|&fd| {
            files::leave_to_streams(fd);
            settings::recheck(fd);
        })),
        None => {
            pass_on!("eventfd", fn(c_uint, c_int) -> c_int, (initial, flags));
            give(kernel::call!(SYS_eventfd2, initial, flags))
        }
    }
}

#[doc = "`eventfd_read(3)`"]
pub(crate) unsafe fn eventfd_read(fd: c_int, value: *mut u64) -> c_int {
    stats::count(Call::Read, fd);
    // SAFETY: the caller's contract.
    give(unsafe { upoll_fds::eventfd_read(fd, value) })
}

#[doc = "`eventfd_write(3)`"]
pub(crate) unsafe fn eventfd_write(fd: c_int, value: u64) -> c_int {
    stats::count(Call::Write, fd);
    give(upoll_fds::eventfd_write(fd, value))
}

#[inline(never)]
fn epoll_create_body(size: c_int) -> c_int {
    if size <= 0 {
        set_errno(Errno::INVAL);
        return -1;
    }
    make_set(0, || {
        pass_on!("epoll_create", fn(c_int) -> c_int, (size));
        give(kernel::call!(SYS_epoll_create1, 0))
    })
}

#[inline(never)]
fn epoll_create1_body(flags: c_int) -> c_int {
    make_set(flags, || {
        pass_on!("epoll_create1", fn(c_int) -> c_int, (flags));
        give(kernel::call!(SYS_epoll_create1, flags))
    })
}

/// Makes a set: a plain one `by_the_kernel`, unless sets are to be user-level from their start, or it is to
/// rotate.
pub(crate) fn make_set(flags: c_int, by_the_kernel: impl FnOnce() -> c_int) -> c_int {
    const ROTATE: c_int = CreateFlags::ROTATE.bits().cast_signed();
    let is_wanted = || match flags & ROTATE {
        0 => settings::is_user_level(Call::EpollCreate),
        _ => !settings::is_nothing_new_served(),
    };
    let made = handlers::make_user_level(is_wanted, || {
        upoll_fds::epoll_create1(flags).inspect(|&epfd| serve(epfd))
    });
    stats::count_as(Call::EpollCreate, made.is_some());
    if let Some(made) = made {
        return give(made.inspect(|&epfd| settings::recheck(epfd)));
    }
    if settings::is_nothing_new_served() {
        return by_the_kernel();
    }
    let generation = plain_sets::begin_to_make();
    let epfd = by_the_kernel();
    if epfd >= 0 && !settings::is_nothing_new_served() {
        takeover::note(epfd, generation);
    }
    epfd
}

fn serve(epfd: c_int) {
    if settings::is_user_level(Call::EpollCreate) {
        // A set that cannot be user-level yet becomes so when it has to be.
        let _ = internal::activate(epfd);
    }
}

/// Makes a plain set user-level, if that is possible: it is about to have a user-level member, or to become one
/// of a user-level set.
fn take_over(epfd: c_int) {
    if !plain_sets::is_plain(epfd) {
        return;
    }
    let is_wanted = || !settings::is_nothing_new_served();
    match handlers::make_user_level(is_wanted, || takeover::take_over(epfd)) {
        Some(()) => settings::recheck(epfd),
        None => plain_sets::forget(epfd),
    }
}

/// Returns whether a change of a set is not for the kernel alone: one of the two is user-level, or becomes so.
pub(crate) fn changes_user_level(epfd: c_int, op: c_int, fd: c_int) -> bool {
    if op == libc::EPOLL_CTL_ADD {
        if plain_sets::is_plain(fd) {
            match internal::is_user_level_or_own(epfd) {
                true => take_over(fd),
                false => plain_sets::forget(fd),
            }
        }
        match internal::is_user_level_or_own(fd) {
            true => take_over(epfd),
            false => plain_sets::note_member(epfd),
        }
    }
    internal::is_user_level_or_own(epfd) || internal::is_user_level_or_own(fd)
}

/// # Safety
/// As the call.
#[inline(never)]
unsafe fn epoll_ctl_body(epfd: c_int, op: c_int, fd: c_int, event: *const Event) -> c_int {
    let is_user_level = changes_user_level(epfd, op, fd);
    stats::count_ctl(epfd, fd);
    if !is_user_level {
        pass_on!(
            "epoll_ctl",
            fn(c_int, c_int, c_int, *const Event) -> c_int,
            (epfd, op, fd, event)
        );
    }
    // SAFETY: the caller's contract.
    let changed = unsafe { upoll_fds::epoll_ctl(epfd, op, fd, event) };
    top::note_change(epfd);
    give(changed)
}

/// # Safety
/// As the call.
#[inline(never)]
unsafe fn epoll_ctl_batch_body(
    epfd: c_int,
    flags: c_int,
    count: c_int,
    commands: *mut EpollCtlCmd,
) -> c_int {
    take_over(epfd);
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's contract.
        match unsafe { internal::read_memory(commands.wrapping_add(at)) } {
            Ok(command) => drop(changes_user_level(epfd, command.op, command.fd)),
            Err(_) => break,
        }
    }
    stats::count(Call::EpollCtl, epfd);
    // SAFETY: the caller's contract.
    let changed = unsafe { upoll_fds::epoll_ctl_batch(epfd, flags, count, commands) };
    top::note_change(epfd);
    give(changed)
}

#[doc = "`epoll_wait(2)`"]
pub(crate) unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut Event,
    room: c_int,
    timeout: c_int,
) -> c_int {
    stats::count(Call::EpollWait, epfd);
    // SAFETY: the caller's contract.
    let found = unsafe { upoll_fds::epoll_wait(epfd, events, room, timeout) };
    give(top::noted(epfd, found))
}

#[doc = "`epoll_pwait(2)`"]
pub(crate) unsafe fn epoll_pwait(
    epfd: c_int,
    events: *mut Event,
    room: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { pwait(epfd, events, room, timeout, mask, MASK_SIZE) }
}

/// The same with the size of the mask, as the system call has it.
pub(crate) unsafe fn pwait(
    epfd: c_int,
    events: *mut Event,
    room: c_int,
    timeout: c_int,
    mask: *const sigset_t,
    size: usize,
) -> c_int {
    stats::count(Call::EpollWait, epfd);
    // SAFETY: the caller's contract.
    let found = unsafe { upoll_fds::epoll_pwait(epfd, events, room, timeout, mask, size) };
    give(top::noted(epfd, found))
}

#[doc = "`epoll_pwait2(2)`"]
pub(crate) unsafe fn epoll_pwait2(
    epfd: c_int,
    events: *mut Event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { pwait2(epfd, events, room, timeout, mask, MASK_SIZE) }
}

/// The same with the size of the mask, as the system call has it.
pub(crate) unsafe fn pwait2(
    epfd: c_int,
    events: *mut Event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
    size: usize,
) -> c_int {
    stats::count(Call::EpollWait, epfd);
    // SAFETY: the caller's contract.
    let found = unsafe { upoll_fds::epoll_pwait2(epfd, events, room, timeout, mask, size) };
    give(top::noted(epfd, found))
}

/// # Safety
/// As the call.
#[inline(never)]
unsafe fn epoll_pwait1_body(
    epfd: c_int,
    flags: c_int,
    events: *mut Event,
    room: c_int,
    params: *const EpollWaitParams,
) -> c_int {
    // The kernel has no such call.
    take_over(epfd);
    stats::count(Call::EpollWait, epfd);
    // SAFETY: the caller's contract.
    let found = unsafe { upoll_fds::epoll_pwait1(epfd, flags, events, room, params) };
    give(top::noted(epfd, found))
}
