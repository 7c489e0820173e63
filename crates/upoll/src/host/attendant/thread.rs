//! The thread of the attendant.

use std::ffi::c_void;
use std::ptr;

use upoll_sys::signals::{Blocked, OF_FAULTS, OF_THE_C_LIBRARY, bit};

use super::Attendant;
use crate::errno::Errno;

/// `EAGAIN`, `ENOMEM`: the kernel or the C library has no thread for it.
pub(super) fn start(attendant: &'static Attendant) -> Result<(), Errno> {
    // The thread inherits the mask. The program's handlers are for its own threads.
    let _blocked = Blocked::new(!(OF_FAULTS | OF_THE_C_LIBRARY | bit(libc::SIGABRT)));
    let mut thread = 0;
    let argument = ptr::from_ref(attendant).cast_mut().cast();
    // Not by `std`, which ends the process where there is no memory for the thread's own data.
    // SAFETY: `run` takes the address of an `Attendant` that is never freed. The thread is detached once, here.
    unsafe {
        match libc::pthread_create(&raw mut thread, ptr::null(), run, argument) {
            0 => libc::pthread_detach(thread),
            errno => return Err(Errno::from_raw(errno)),
        };
    }
    Ok(())
}

extern "C" fn run(attendant: *mut c_void) -> *mut c_void {
    // SAFETY: the call copies the name, a C string of at most 16 bytes.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), c"upoll-attendant".as_ptr()) };
    // SAFETY: from `start`, of one that is never freed.
    let attendant = unsafe { &*attendant.cast::<Attendant>() };
    attendant.attend();
    ptr::null_mut()
}
