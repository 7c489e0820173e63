//! Kernel fds in a set of upoll, compared with the kernel's own set. Each call on upoll's set
//! checks by a further system call that the fd of its kernel set still refers to that set.

use upoll::{Epoll, Events};

use super::calls::{Comparison, modify, row, waits, write_wait_read};
use super::kernel::Fd;

/// The check costs less than the call that follows it.
const TARGET: f64 = 0.5;

pub(super) const COMPARISONS: &[Comparison] = &[
    row(
        "descriptor-wait",
        "wait(0), 1 descriptor ready",
        TARGET,
        || {
            Ok([
                waits::<Fd, Fd>(1, 1, Events::IN)?,
                waits::<Epoll, Fd>(1, 1, Events::IN)?,
            ])
        },
    ),
    row("descriptor-mod", "ctl MOD of a descriptor", TARGET, || {
        Ok([modify::<Fd, Fd>()?, modify::<Epoll, Fd>()?])
    }),
    row(
        "descriptor-event",
        "write + wait(0) + read of a descriptor",
        TARGET,
        || {
            Ok([
                write_wait_read::<Fd, Fd>()?,
                write_wait_read::<Epoll, Fd>()?,
            ])
        },
    ),
];
