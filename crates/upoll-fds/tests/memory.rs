//! The memory that calls are given, and the memory that they allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::mem;
use std::ptr;

use upoll::Errno;

/// Counts what each thread allocates.
struct Counting;

std::thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most fds that `upoll(7)` names for a signal handler that may have interrupted `malloc(3)`.
#[test]
fn the_first_poll_and_select_of_eight_fds_allocate_nothing() {
    let fds: [i32; 8] = std::array::from_fn(|at| {
        upoll_fds::eventfd(u32::from(at == 7), libc::EFD_NONBLOCK).unwrap()
    });
    let poll = move || {
        let events = libc::POLLIN;
        let mut asked = fds.map(|fd| libc::pollfd {
            fd,
            events,
            revents: 0,
        });
        // SAFETY: the list is live.
        unsafe { upoll_fds::poll(asked.as_mut_ptr(), 8, 0) }
    };
    let select = move || {
        // SAFETY: all zeros is an empty set, and the fds are below its size.
        let mut asked: libc::fd_set = unsafe { std::mem::zeroed() };
        for fd in fds {
            // SAFETY: as above.
            unsafe { libc::FD_SET(fd, &raw mut asked) };
        }
        let mut limit = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let sets = [&raw mut asked, ptr::null_mut(), ptr::null_mut()];
        // SAFETY: the sets and the limit are live.
        unsafe { upoll_fds::select(fds[7] + 1, sets, &raw mut limit) }
    };
    let in_a_thread = |call: Box<dyn Fn() -> Result<usize, Errno> + Send>| {
        let thread = std::thread::spawn(move || {
            let before = ALLOCATED.get();
            let result = call();
            (result, ALLOCATED.get() - before)
        });
        thread.join().unwrap()
    };
    assert_eq!(in_a_thread(Box::new(poll)), (Ok(1), 0));
    assert_eq!(in_a_thread(Box::new(select)), (Ok(1), 0));
}

/// Signal handlers may make these calls, on whatever thread they run.
#[test]
fn the_first_read_write_and_poll_of_a_thread_allocate_nothing() {
    let fd = upoll_fds::eventfd(0, libc::EFD_NONBLOCK).unwrap();
    std::thread::spawn(move || {
        let before = ALLOCATED.get();
        let mut value = 1_u64.to_ne_bytes();
        let mut asked = [libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        }];
        // SAFETY: the buffers are live.
        let results = unsafe {
            [
                upoll_fds::write(fd, value.as_ptr(), value.len()),
                upoll_fds::poll(asked.as_mut_ptr(), 1, 0),
                upoll_fds::read(fd, value.as_mut_ptr(), value.len()),
                upoll_fds::poll(asked.as_mut_ptr(), 1, 0),
            ]
        };
        assert_eq!(ALLOCATED.get(), before);
        assert_eq!(results, [Ok(8), Ok(1), Ok(8), Ok(0)]);
    })
    .join()
    .unwrap();
}

const PAGE: usize = 4096;

/// Pages that nobody has touched.
fn untouched(pages: usize) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, in nobody's way.
    let memory = unsafe { libc::mmap(ptr::null_mut(), pages * PAGE, access, kind, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: it is ours. Whole pages are counted below.
    unsafe { libc::madvise(memory, pages * PAGE, libc::MADV_NOHUGEPAGE) };
    memory.cast()
}

fn touched(memory: *mut u8, pages: usize) -> usize {
    let mut residents = vec![0_u8; pages];
    // SAFETY: a byte for each page.
    let asked = unsafe { libc::mincore(memory.cast(), pages * PAGE, residents.as_mut_ptr()) };
    assert_eq!(asked, 0);
    residents
        .iter()
        .filter(|&resident| resident & 1 != 0)
        .count()
}

#[test]
fn a_read_into_a_large_buffer_touches_what_it_fills() {
    const PAGES: usize = 1000;
    let mut theirs = [-1; 2];
    let mut ours = [-1; 2];
    let mut connected = [-1; 2];
    // SAFETY: there is room for two fds each.
    unsafe {
        assert_eq!(libc::pipe(theirs.as_mut_ptr()), 0);
        upoll_fds::pipe(&raw mut ours).unwrap();
        upoll_fds::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, &raw mut connected).unwrap();
    }
    let pairs = [theirs, ours, connected];
    for [from, to] in pairs {
        let ways = if from == connected[0] { 0..5 } else { 0..2 };
        for way in ways {
            let buffer = untouched(PAGES);
            let list = [libc::iovec {
                iov_base: buffer.cast(),
                iov_len: PAGES * PAGE,
            }];
            // SAFETY: the buffers are live.
            let read = unsafe {
                upoll_fds::write(to, b"few".as_ptr(), 3).unwrap();
                let mut message: libc::msghdr = mem::zeroed();
                (message.msg_iov, message.msg_iovlen) = (list.as_ptr().cast_mut(), 1);
                match way {
                    0 => upoll_fds::read(from, buffer, PAGES * PAGE),
                    1 => upoll_fds::readv(from, list.as_ptr(), 1),
                    2 => upoll_fds::recv(from, buffer, PAGES * PAGE, libc::MSG_PEEK),
                    3 => upoll_fds::recv(from, buffer, PAGES * PAGE, 0),
                    _ => {
                        // After what was peeked at.
                        upoll_fds::recvmsg(from, &raw mut message, 0)
                    }
                }
            };
            assert_eq!(read, Ok(if way == 3 { 6 } else { 3 }));
            assert_eq!(touched(buffer, PAGES), 1, "{from}, way {way}");
        }
    }
}

/// The result is that of `fcntl(3)`; the system call cannot distinguish a group from an error.
#[test]
fn the_owner_of_an_fd_may_be_a_group() {
    let mut ends = [-1; 2];
    // SAFETY: there is room for two fds.
    unsafe { upoll_fds::pipe(&raw mut ends) }.unwrap();
    // SAFETY: no pointers are involved.
    unsafe {
        let group = libc::getpgrp();
        for owner in [0, libc::getpid(), -group] {
            let argument = libc::c_long::from(owner).cast_unsigned() as usize;
            assert_eq!(upoll_fds::fcntl(ends[0], libc::F_SETOWN, argument), Ok(0));
            assert_eq!(libc::fcntl(ends[0], libc::F_GETOWN), owner);
            assert_eq!(upoll_fds::fcntl(ends[0], libc::F_GETOWN, 0), Ok(owner));
        }
        assert_eq!(upoll_fds::fcntl(-1, libc::F_GETOWN, 0), Err(Errno::BADF));
    }
}

#[test]
fn the_list_of_buffers_is_read_before_a_buffer_is_looked_at() {
    let mut theirs = [-1; 2];
    let mut ours = [-1; 2];
    // SAFETY: there is room for two fds each.
    unsafe {
        assert_eq!(libc::pipe(theirs.as_mut_ptr()), 0);
        upoll_fds::pipe(&raw mut ours).unwrap();
    }
    let not_a_programs: *mut libc::c_void = ptr::without_provenance_mut(usize::MAX - PAGE);
    let list = [
        libc::iovec {
            iov_base: not_a_programs,
            iov_len: 8,
        },
        libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: usize::MAX,
        },
    ];
    for count in [1, 2] {
        // SAFETY: the list is live; what it leads to is not touched.
        let of = |[from, to]: [i32; 2]| unsafe {
            [
                upoll_fds::readv(from, list.as_ptr(), count),
                upoll_fds::writev(to, list.as_ptr(), count),
            ]
        };
        assert_eq!(of(ours), of(theirs), "{count}");
    }
}
