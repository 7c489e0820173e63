//! The wake fd of a thread that sleeps in `poll` or `select` with kernel fds in its list. Each
//! thread has its own, and it survives whatever the program does to its fd.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod threads;

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use threads::{asleep, in_child, tid, until_asleep};
use upoll::{Errno, EventFd, Events, PollFd};

const LONG: Duration = Duration::from_secs(60);

fn idle_pipe() -> (PipeReader, PipeWriter) {
    std::io::pipe().unwrap()
}

/// Returns the kernel sets that this process has open.
fn own_sets() -> Vec<i32> {
    let mut found: Vec<_> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.unwrap();
            let file = std::fs::read_link(entry.path()).ok()?;
            let is_set = file.to_str()? == "anon_inode:[eventpoll]";
            is_set.then(|| entry.file_name().to_str().unwrap().parse().unwrap())
        })
        .collect();
    found.sort_unstable();
    found
}

/// Sleeps in the kernel until another thread's wakeup; the sleep needs the thread's wake fd.
fn sleep_and_be_woken() {
    let counter = EventFd::new(0).unwrap();
    let (reader, _writer) = idle_pipe();
    let sleeper = tid();
    thread::scope(|scope| {
        scope.spawn(|| {
            until_asleep(sleeper);
            counter.write(1).unwrap();
        });
        let mut fds = [
            PollFd::new(&counter, Events::IN),
            PollFd::new(&reader, Events::IN),
        ];
        let begun = Instant::now();
        assert_eq!(upoll::poll(&mut fds, LONG), Ok(1));
        assert!(begun.elapsed() < LONG, "the wake_fd did not ring");
    });
}

/// Makes this thread create its wake fd, and returns the fd. The process must not have opened one for
/// this thread before.
fn make_wake_fd() -> i32 {
    let before = own_sets();
    sleep_and_be_woken();
    let mut made = own_sets();
    made.retain(|set| !before.contains(set));
    assert_eq!(made.len(), 1);
    made[0]
}

#[test]
fn a_thread_opens_one_wake_fd_and_closes_it_when_it_ends() {
    in_child(|| {
        let before = own_sets();
        thread::spawn(|| {
            make_wake_fd();
            let mine = own_sets();
            sleep_and_be_woken();
            assert_eq!(own_sets(), mine);
        })
        .join()
        .unwrap();
        assert_eq!(own_sets(), before);
    });
}

#[test]
fn a_list_of_user_level_objects_needs_no_wake_fd() {
    in_child(|| {
        let before = own_sets();
        let counter = EventFd::new(0).unwrap();
        let mut fds = [PollFd::new(&counter, Events::IN)];
        assert_eq!(upoll::poll(&mut fds, Duration::from_millis(1)), Ok(0));
        assert_eq!(own_sets(), before);
    });
}

#[test]
fn a_child_opens_a_wake_fd_of_its_own_and_leaves_the_parents_alone() {
    in_child(|| {
        let fd = make_wake_fd();
        let of_parent = own_sets();
        in_child(|| {
            // The child has closed the parent's wake fd.
            assert!(own_sets().is_empty());
            sleep_and_be_woken();
            assert_eq!(own_sets().len(), of_parent.len());
        });
        assert_eq!(own_sets(), of_parent);
        in_child(|| {
            // A file that the child opens in place of the wake fd stays open.
            let (reader, _writer) = idle_pipe();
            // SAFETY: the fd is the wake fd, which a program may close by mistake.
            unsafe { libc::dup2(reader.as_raw_fd(), fd) };
            sleep_and_be_woken();
            // SAFETY: the call takes no pointers.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
            assert_eq!(flags, libc::O_RDONLY);
        });
        sleep_and_be_woken();
        assert_eq!(own_sets(), of_parent);
    });
}

#[test]
fn a_file_in_place_of_a_closed_wake_fd_is_left_alone() {
    in_child(|| {
        thread::spawn(|| {
            let fd = make_wake_fd();
            let (end, mut other) = UnixStream::pair().unwrap();
            other.write_all(b"12345678").unwrap();
            // SAFETY: closes the wake fd, as a program does that closes all fds.
            let mut reused = unsafe {
                assert_eq!(libc::dup2(end.as_raw_fd(), fd), fd);
                UnixStream::from_raw_fd(fd)
            };
            drop(end);
            sleep_and_be_woken();
            // Nothing was read from it or written to it, and it is still open.
            let mut bytes = [0; 8];
            reused.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"12345678");
            other.set_nonblocking(true).unwrap();
            let read = other.read(&mut bytes).unwrap_err();
            assert_eq!(read.kind(), std::io::ErrorKind::WouldBlock);
        })
        .join()
        .unwrap();
    });
}

#[test]
fn a_sleeper_whose_wake_fd_was_closed_is_still_woken() {
    in_child(|| {
        let (send, receive) = mpsc::channel();
        let counter = EventFd::new(0).unwrap();
        let (reader, _writer) = idle_pipe();
        let ours = counter.clone();
        let (thread, _) = asleep(move || {
            let fd = make_wake_fd();
            send.send((tid(), fd)).unwrap();
            let mut fds = [
                PollFd::new(&ours, Events::IN),
                PollFd::new(&reader, Events::IN),
            ];
            let ready = upoll::poll(&mut fds, LONG);
            (ready, fds.map(|fd| fd.revents()))
        });
        let (sleeper, fd) = receive.recv().unwrap();
        until_asleep(sleeper);
        let (end, mut other) = UnixStream::pair().unwrap();
        // SAFETY: closes the wake fd, as a program does that closes all fds.
        let _reused = unsafe {
            assert_eq!(libc::dup2(end.as_raw_fd(), fd), fd);
            OwnedFd::from_raw_fd(fd)
        };
        counter.write(1).unwrap();
        other.set_nonblocking(true).unwrap();
        assert!(other.read(&mut [0; 8]).is_err());
        // The sleep checks the library's own fds periodically, and rechecks the counter.
        let (ready, events) = thread.join().unwrap();
        assert_eq!((ready, events), (Ok(1), [Events::IN, Events::empty()]));
    });
}

#[test]
fn a_late_wake_does_not_touch_the_file_in_place_of_an_ended_threads_wake_fd() {
    in_child(|| {
        let counter = EventFd::new(0).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    counter.write(1).unwrap();
                    counter.read().unwrap();
                }
            });
            for _ in 0..1_000 {
                let sleeper = scope.spawn(|| {
                    let (reader, _writer) = idle_pipe();
                    let mut fds = [
                        PollFd::new(&counter, Events::IN),
                        PollFd::new(&reader, Events::IN),
                    ];
                    upoll::poll(&mut fds, Duration::from_micros(100)).unwrap();
                });
                sleeper.join().unwrap();
                // SAFETY: the calls open an fd, and read into a live counter.
                unsafe {
                    let reused = libc::eventfd(0, libc::EFD_NONBLOCK);
                    thread::yield_now();
                    let mut count = 0_u64;
                    assert_eq!(libc::read(reused, (&raw mut count).cast(), 8), -1);
                    libc::close(reused);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn more_entries_than_a_process_may_have_open_are_invalid() {
    in_child(|| {
        let limit = libc::rlimit {
            rlim_cur: 64,
            rlim_max: 64,
        };
        // SAFETY: the limit is live.
        let limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(limited, 0);
        for (count, expected) in [(64, Ok(0)), (65, Err(Errno::INVAL))] {
            let mut fds = vec![PollFd::ignored(); count];
            assert_eq!(upoll::poll(&mut fds, Duration::ZERO), expected);
            let one = libc::pollfd {
                fd: -1,
                events: 0,
                revents: 0,
            };
            let mut list = vec![one; count];
            // SAFETY: the list is as long as is claimed.
            let kernel = unsafe { libc::poll(list.as_mut_ptr(), count as libc::nfds_t, 0) };
            let kernel = usize::try_from(kernel).map_err(|_| {
                Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap())
            });
            assert_eq!(kernel, expected);
        }
    });
}
