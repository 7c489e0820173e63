//! `membarrier(2)`: a barrier in all running threads of the process.

use crate::syscall;

/// Registers the process, which [`barrier`] does itself if need be. Returns whether the kernel supports barriers.
#[must_use]
pub fn register() -> bool {
    command(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

/// Issues a barrier on all running threads of the process. Returns whether the kernel has done so.
///
/// The child of a fork has to register again.
pub fn barrier() -> bool {
    let issue = || command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    issue() || register() && issue()
}

fn command(command: libc::c_int) -> bool {
    // SAFETY: no memory is involved.
    unsafe { syscall!(SYS_membarrier, command, 0, 0) }.is_ok()
}
