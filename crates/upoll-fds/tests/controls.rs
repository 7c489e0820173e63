//! `fcntl`, `ioctl`, `readv` and `writev` by fd have the same results on user-level pipes, eventfds and
//! sockets as on the kernel's.

use upoll::Errno;

type Outcome = Result<i64, i32>;

fn theirs(result: impl Into<i64>) -> Outcome {
    match result.into() {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
        value => Ok(value),
    }
}

fn ours<T: TryInto<i64>>(result: Result<T, Errno>) -> Outcome {
    match result {
        Ok(value) => Ok(value.try_into().unwrap_or(i64::MAX)),
        Err(errno) => Err(errno.raw()),
    }
}

/// One each of: an eventfd, both ends of a pipe, both of a socket pair.
struct World {
    is_ours: bool,
    fds: [i32; 5],
}

const WRITER: usize = 2;

impl World {
    fn new(is_ours: bool) -> Self {
        let (mut pipe, mut pair) = ([-1; 2], [-1; 2]);
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
        // SAFETY: there is room for two fds each.
        let counter = unsafe {
            if is_ours {
                upoll_fds::pipe2(&raw mut pipe, libc::O_NONBLOCK).unwrap();
                upoll_fds::socketpair(libc::AF_UNIX, kind, 0, &raw mut pair).unwrap();
                upoll_fds::eventfd(0, libc::EFD_NONBLOCK).unwrap()
            } else {
                assert_eq!(libc::pipe2(pipe.as_mut_ptr(), libc::O_NONBLOCK), 0);
                let made = libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr());
                assert_eq!(made, 0);
                libc::eventfd(0, libc::EFD_NONBLOCK)
            }
        };
        World {
            is_ours,
            fds: [counter, pipe[0], pipe[1], pair[0], pair[1]],
        }
    }

    fn fcntl(&self, at: usize, command: i32, argument: usize) -> Outcome {
        // SAFETY: the commands of these tests take numbers.
        unsafe {
            match self.is_ours {
                true => ours(upoll_fds::fcntl(self.fds[at], command, argument)),
                false => theirs(libc::fcntl(self.fds[at], command, argument)),
            }
        }
    }

    fn ioctl(&self, at: usize, request: u64, argument: *mut i32) -> Outcome {
        let (fd, address) = (self.fds[at], argument.expose_provenance());
        // SAFETY: the argument is a live int, or leads nowhere.
        unsafe {
            match self.is_ours {
                true => ours(upoll_fds::ioctl(fd, request as u32, address)),
                false => theirs(libc::ioctl(fd, request, argument)),
            }
        }
    }

    fn vectored(&self, at: usize, list: &[libc::iovec], count: i32, writes: bool) -> Outcome {
        let (fd, list) = (self.fds[at], list.as_ptr());
        // SAFETY: what the pointers lead to is live, or not there at all.
        unsafe {
            match (self.is_ours, writes) {
                (true, true) => ours(upoll_fds::writev(fd, list, count)),
                (true, false) => ours(upoll_fds::readv(fd, list, count)),
                (false, true) => theirs(libc::writev(fd, list, count) as i64),
                (false, false) => theirs(libc::readv(fd, list, count) as i64),
            }
        }
    }

    fn write(&self, at: usize, len: usize) -> Outcome {
        let bytes = vec![3_u8; len];
        // SAFETY: the bytes are live.
        unsafe {
            match self.is_ours {
                true => ours(upoll_fds::write(self.fds[at], bytes.as_ptr(), len)),
                false => theirs(libc::write(self.fds[at], bytes.as_ptr().cast(), len) as i64),
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for fd in self.fds {
            match self.is_ours {
                true => upoll_fds::close(fd).unwrap(),
                // SAFETY: the fd is this one's.
                false => assert_eq!(unsafe { libc::close(fd) }, 0),
            }
        }
    }
}

fn both() -> [World; 2] {
    [false, true].map(World::new)
}

fn same<T: PartialEq + std::fmt::Debug>(
    worlds: &[World; 2],
    what: &str,
    ask: impl Fn(&World) -> T,
) {
    assert_eq!(ask(&worlds[0]), ask(&worlds[1]), "{what}");
}

#[test]
fn the_size_of_a_pipe_is_set_as_the_kernel_sets_it() {
    const MINUS_ONE: usize = u32::MAX as usize;
    let sizes = [
        0,
        1,
        4096,
        4097,
        5000,
        65_536,
        100_000,
        1 << 20,
        1 << 31,
        MINUS_ONE,
    ];
    let worlds = both();
    for filled in [0, 1, 4096, 20_000] {
        same(&worlds, "fill", |world| match filled {
            0 => Ok(0),
            len => world.write(WRITER, len),
        });
        for size in sizes {
            for at in 0..5 {
                let what = format!("{size} of {at} with {filled}");
                same(&worlds, &what, |world| {
                    // Larger ones need a capability that this process may have.
                    let set = match size > 1 << 20 && size < 1 << 31 {
                        true => Ok(0),
                        false => world.fcntl(at, libc::F_SETPIPE_SZ, size),
                    };
                    (set, world.fcntl(at, libc::F_GETPIPE_SZ, 0))
                });
            }
        }
    }
}

#[test]
fn status_flags_are_set_by_fcntl_and_ioctl_as_the_kernel_sets_them() {
    let worlds = both();
    for at in 0..5 {
        for flags in [
            0,
            libc::O_NONBLOCK,
            libc::O_NONBLOCK | libc::O_APPEND,
            libc::O_RDWR,
        ] {
            let flags = flags.cast_unsigned() as usize;
            same(&worlds, &format!("F_SETFL {flags:o} of {at}"), |world| {
                let set = world.fcntl(at, libc::F_SETFL, flags);
                (set, world.fcntl(at, libc::F_GETFL, 0))
            });
        }
        for value in [1, 0, 7, -1] {
            same(&worlds, &format!("FIONBIO {value} of {at}"), |world| {
                let mut value = value;
                let set = world.ioctl(at, libc::FIONBIO, &raw mut value);
                (set, world.fcntl(at, libc::F_GETFL, 0))
            });
        }
        let nowhere = std::ptr::without_provenance_mut(8);
        for request in [libc::FIONBIO, libc::FIONREAD, libc::TIOCOUTQ, 0x1234] {
            same(
                &worlds,
                &format!("request {request:x} of {at} to nowhere"),
                |world| world.ioctl(at, request, nowhere),
            );
        }
        // Nothing there, and not to be waited for again.
        same(&worlds, &format!("reading {at}"), |world| {
            world
                .fcntl(at, libc::F_SETFL, libc::O_NONBLOCK as usize)
                .unwrap();
            let mut buffer = [0_u8; 8];
            let list = [libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: 8,
            }];
            world.vectored(at, &list, 1, false)
        });
    }
}

#[test]
fn lists_of_buffers_are_read_and_written_as_the_kernel_does() {
    let nowhere = std::ptr::without_provenance_mut::<libc::c_void>(8);
    let mut bytes = vec![1_u8; 8192];
    let buffer = |len| libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: len,
    };
    let wild = |len| libc::iovec {
        iov_base: nowhere,
        iov_len: len,
    };
    let lists: Vec<Vec<libc::iovec>> = vec![
        vec![],
        vec![buffer(0)],
        vec![buffer(0); 1024],
        vec![buffer(8)],
        vec![buffer(4), buffer(4)],
        vec![buffer(8), buffer(8)],
        vec![buffer(0), buffer(8), buffer(0)],
        vec![buffer(8); 1024],
        vec![buffer(8); 1025],
        vec![buffer(5000), buffer(5000)],
        vec![wild(0), buffer(8)],
        vec![wild(0)],
        vec![wild(8)],
        vec![buffer(8), wild(8)],
        vec![wild(8), buffer(8)],
        vec![buffer(4), wild(4)],
        vec![buffer(usize::MAX)],
        vec![buffer(8), buffer(usize::MAX)],
        vec![buffer(usize::MAX / 2), buffer(usize::MAX / 2)],
    ];
    for (number, list) in lists.iter().enumerate() {
        // A page at most: how much of several is read into half a buffer is not promised.
        let worlds = both();
        let mut list = list.clone();
        for entry in &mut list {
            if entry.iov_base.is_null() {
                entry.iov_base = bytes.as_mut_ptr().cast();
            }
        }
        let count = i32::try_from(list.len()).unwrap();
        for count in [count, -1, i32::MAX] {
            // A longer count than the list's is refused before the list is looked at.
            for at in 0..5 {
                for writes in [true, false] {
                    let what = format!("list {number} of {count}, {writes}, at {at}");
                    same(&worlds, &what, |world| {
                        world.vectored(at, &list, count, writes)
                    });
                }
            }
        }
    }
}
