//! Descriptors sent to other processes: they are handed over to the kernel first.

use std::ffi::{c_int, c_uint};

use libc::{mmsghdr, msghdr, ssize_t};

use crate::errno::{give, give_size};
use crate::files::hand_over;
use crate::raw;

/// Hands over the descriptors that a message carries.
///
/// # Safety
/// Memory that `message` leads to is not being written.
unsafe fn hand_over_rights(message: *const msghdr) {
    if !upoll_fds::has_any() {
        return;
    }
    // SAFETY: the caller's contract. What cannot be read the kernel will refuse.
    let Ok(copy) = (unsafe { upoll_fds::read_memory(message) }) else {
        return;
    };
    let control = copy.msg_control.cast::<u8>();
    // SAFETY: as above.
    let is_there = copy.msg_controllen > 0 && unsafe { upoll_fds::read_memory(control) }.is_ok();
    if !is_there {
        return;
    }
    // SAFETY: the caller's contract.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const copy);
        while let Some(control) = header.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                let start = libc::CMSG_DATA(header);
                let head = start.addr() - header.addr();
                let count = control.cmsg_len.saturating_sub(head) / size_of::<c_int>();
                for at in 0..count {
                    hand_over(start.cast::<c_int>().add(at).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(&raw const copy, header);
        }
    }
}

#[doc = "`sendmsg(2)`"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    unsafe { hand_over_rights(message) };
    give_size(raw::kernel!(SYS_sendmsg, fd, message, flags))
}

#[doc = "`sendmmsg(2)`"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    for at in 0..count.min(libc::UIO_MAXIOV.cast_unsigned()) as usize {
        let message = messages.wrapping_add(at);
        let header = message.wrapping_byte_add(std::mem::offset_of!(mmsghdr, msg_hdr));
        // SAFETY: the caller's contract.
        unsafe { hand_over_rights(header.cast()) };
    }
    give(raw::kernel!(SYS_sendmmsg, fd, messages, count, flags))
}
