//! A program may have a filter that traps system calls, and a handler of `SIGSYS` that implements
//! them. The handler also gets the calls that the library makes.
#![cfg(all(
    not(upoll_loom),
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use upoll::Errno;

/// The number of system calls that the handler has answered.
static ANSWERED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn answers(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    let context: *mut libc::ucontext_t = context.cast();
    let refused = -libc::EPERM;
    // SAFETY: the kernel hands the handler the context, in which the result is a register.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        {
            let result = libc::REG_RAX.cast_unsigned() as usize;
            (*context).uc_mcontext.gregs[result] = refused.into();
        }
        #[cfg(target_arch = "aarch64")]
        {
            (*context).uc_mcontext.regs[0] = i64::from(refused).cast_unsigned();
        }
    }
    ANSWERED.fetch_add(1, Ordering::SeqCst);
}

/// Makes the handler implement `dup` for this thread. Returns false if there are no filters here.
fn trap_dup() -> bool {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IS_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let number = u32::try_from(libc::SYS_dup).unwrap();
    let step = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
    let mut steps = [
        step(LOAD, 0, 0),
        step(IS_EQUAL, number, 1),
        step(RETURN, libc::SECCOMP_RET_TRAP, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let filter = libc::sock_fprog {
        len: 4,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: all of it is live; the action is zeroed but for what is set.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = answers;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) == 0
            && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            ) == 0
    }
}

#[test]
fn a_system_call_that_a_filter_traps_is_answered_by_the_handler() {
    let fd = upoll_fds::eventfd(0, libc::EFD_CLOEXEC).unwrap();
    if !trap_dup() {
        // There is nothing to test.
        return;
    }
    // SAFETY: no pointers are involved.
    let theirs = unsafe { libc::dup(fd) };
    let errno = io::Error::last_os_error().raw_os_error();
    assert_eq!((theirs, errno), (-1, Some(libc::EPERM)));
    assert_eq!(ANSWERED.load(Ordering::SeqCst), 1);
    assert_eq!(upoll_fds::dup(fd), Err(Errno::PERM));
    assert_eq!(ANSWERED.load(Ordering::SeqCst), 2);
    upoll_fds::close(fd).unwrap();
}
