//! The record of a kernel set of the program, when the program closes an fd that it is copying.

use upoll_fds::internal::plain_sets::{begin_copy, begin_to_make, close, end_copy, is_plain};
use upoll_fds::internal::takeover::note;

fn make_set() -> i32 {
    let generation = begin_to_make();
    // SAFETY: the call has no pointers.
    let set = unsafe { libc::epoll_create1(0) };
    assert!(set >= 0);
    note(set, generation);
    set
}

fn dup(fd: i32) -> i32 {
    // SAFETY: the call has no pointers.
    let new = unsafe { libc::dup(fd) };
    assert!(new >= 0);
    new
}

/// Closes an fd of a set, and opens another file there.
fn reopen(fd: i32) {
    close(fd);
    // SAFETY: the fds are the test's own.
    unsafe {
        let other = libc::eventfd(0, 0);
        assert!(other >= 0);
        assert_eq!(libc::dup2(other, fd), fd);
        assert_eq!(libc::close(other), 0);
    }
}

#[test]
fn a_file_that_takes_an_fd_while_it_is_copied_is_not_taken_for_the_set() {
    let set = make_set();
    let copy = begin_copy(set).expect("it is plain");
    let second = dup(set);
    end_copy(copy, second);
    assert!(is_plain(set) && is_plain(second));

    // A thread copies the fd, and another one reopens it before the kernel is asked.
    let copy = begin_copy(set).expect("it is plain");
    reopen(set);
    let of_the_other = dup(set);
    end_copy(copy, of_the_other);
    assert!(!is_plain(set));
    assert!(!is_plain(of_the_other), "an eventfd is taken for a set");
    assert!(!is_plain(second), "it may be taken over with that fd");

    for fd in [set, second, of_the_other] {
        close(fd);
        // SAFETY: the fds are the test's own.
        assert_eq!(unsafe { libc::close(fd) }, 0);
    }
    // The place is free again.
    let next = make_set();
    assert!(is_plain(next));
}
