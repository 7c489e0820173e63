//! `epoll_ctl_batch` (the patch of that name): many changes in one call, by fd.

use std::os::fd::RawFd;

use smallvec::SmallVec;
use upoll::{CtlCommand, Errno, Events, Op, Target};

use crate::epoll_ctl::{ctl, is_added_as_it_is, lacks_something, operation};
use crate::interest::Interest;
use crate::object::Object;
use crate::{memory, table};

/// `struct epoll_ctl_cmd` of the `epoll_ctl_batch` patch, in its natural layout.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EpollCtlCmd {
    /// Must be 0.
    pub flags: i32,
    /// As for `epoll_ctl`.
    pub op: i32,
    /// As for `epoll_ctl`.
    pub fd: i32,
    /// As in `struct epoll_event`.
    pub events: u32,
    /// As in `struct epoll_event`.
    pub data: u64,
    /// The result: 0, or a negative errno.
    pub result: i32,
}

impl EpollCtlCmd {
    fn interest(&self) -> Interest {
        Interest {
            events: Events::from_bits_retain(self.events),
            data: self.data,
        }
    }
}

/// The number of changes that one pass takes. As many objects are kept from closing for its length.
const PASS: usize = 16;

type Commands = SmallVec<[EpollCtlCmd; PASS]>;

/// `epoll_ctl_batch` of the patch of that name: executes `commands` in order until one fails. Returns
/// how many succeeded.
///
/// The `result` of each executed command is set. Commands after the first that failed are not executed
/// and not changed. Commands before it stay executed: a batch is not atomic.
///
/// Consecutive changes of user-level members are made in passes of 16, each under one hold of the set's
/// lock. Every other change takes an `epoll_ctl` of its own, because the kernel has no call for
/// several. These are:
/// - changes of kernel members, and of any member of a set without user-level ones,
/// - changes of a set as a member,
/// - the ADD of an eventfd that other processes share.
///
/// # Errors
/// The call fails, and nothing is done:
/// - `EINVAL`: `flags` is not 0; `count` is not positive, or more than `INT_MAX` bytes hold; `commands`
///   is null.
/// - `EFAULT`: `commands` cannot be read.
///
/// The call also fails with `EFAULT` if a result cannot be written. As in the patch, the commands have
/// been executed then.
///
/// An fd that is no set makes the first command fail: the call returns 0, and the command's `result` is
/// `-EBADF` or `-EINVAL`.
///
/// # Safety
/// The memory that `commands` points to belongs to the caller, and nobody else uses it.
pub unsafe fn epoll_ctl_batch(
    epfd: RawFd,
    flags: i32,
    count: i32,
    commands: *mut EpollCtlCmd,
) -> Result<usize, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    let most = i32::MAX.unsigned_abs() as usize / size_of::<EpollCtlCmd>();
    if flags != 0 || count == 0 || count > most || commands.is_null() {
        return Err(Errno::INVAL);
    }
    let bytes = count * size_of::<EpollCtlCmd>();
    // SAFETY: the caller's contract.
    if unsafe { memory::readable(commands.cast(), bytes) }.len() < bytes {
        return Err(Errno::FAULT);
    }
    let mut written = Ok(());
    let mut done = 0;
    while done < count {
        let mut pass = Commands::new();
        for at in done..count.min(done + PASS) {
            // SAFETY: as above; a command has no invalid values.
            pass.push(unsafe { memory::read(commands.wrapping_add(at)) }?);
        }
        let mut executed = in_one_pass(epfd, &mut pass);
        if executed == 0 {
            pass[0].result = negated(alone(epfd, &pass[0]));
            executed = 1;
        }
        let mut failed = false;
        for command in &pass[..executed] {
            let place = commands.wrapping_add(done);
            let result_at = place.wrapping_byte_add(std::mem::offset_of!(EpollCtlCmd, result));
            // SAFETY: as above.
            written =
                written.and(unsafe { memory::write(result_at.cast::<i32>(), command.result) });
            failed = command.result != 0;
            done += usize::from(!failed);
        }
        if failed {
            break;
        }
    }
    written.map(|()| done)
}

fn negated(result: Result<(), Errno>) -> i32 {
    result.err().map_or(0, |errno| -errno.raw())
}

fn alone(epfd: RawFd, command: &EpollCtlCmd) -> Result<(), Errno> {
    match command.flags {
        0 => ctl(epfd, command.op, command.fd, command.interest()),
        _ => Err(Errno::INVAL),
    }
}

/// Executes the first of `commands`, up to one that fails or cannot be part of a pass. Returns how
/// many have a result.
fn in_one_pass(epfd: RawFd, commands: &mut [EpollCtlCmd]) -> usize {
    table::with(epfd, |set| {
        let Object::Epoll(set) = set else { return 0 };
        if set.is_passive() {
            return 0;
        }
        // All are looked up before the set is locked: a thread that demotes one keeps its
        // fds from being looked up while it takes it out of the sets.
        let objects = table::Several::new();
        let mut pass = SmallVec::<[CtlCommand<'_>; PASS]>::new();
        for command in &*commands {
            let op = operation(command.op).filter(|_| command.flags == 0);
            let (Some(op), Some(object)) = (op, objects.add(command.fd)) else {
                break;
            };
            if matches!(object, Object::Epoll(_)) || op == Op::Add && !is_added_as_it_is(object) {
                break;
            }
            let target = Target::File(object.as_file_ref(command.fd));
            pass.push(CtlCommand::new(op, target, command.interest().event()));
        }
        // It refuses an empty pass.
        let done = set.as_epoll().ctl_batch(&mut pass).unwrap_or(0);
        // A command that lacks memory or fds is executed alone, which may demote its object.
        let executed = match pass.get(done).map(|failed| failed.result) {
            Some(Err(errno)) if !lacks_something(errno) => done + 1,
            _ => done,
        };
        for (command, passed) in commands.iter_mut().zip(&pass[..executed]) {
            command.result = negated(passed.result);
        }
        executed
    })
    .unwrap_or(0)
}
