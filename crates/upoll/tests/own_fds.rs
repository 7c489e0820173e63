//! The program may close the fds that the library has open for itself, and reuse them. The
//! library then leaves the program's files alone, and sets keep working.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod open_fds;
mod threads;

use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use open_fds::{
    ALL, check_untouched, close_all_but, is_open, open_everywhere, open_in, opened_by, other_set,
};
use threads::{in_child, tid, until_asleep};
use upoll::{
    CreateFlags, Epoll, Event, EventFd, EventFdFlags, Events, FdSet, PollContext, PollFd, Source,
    Timeout, Watch,
};

const LONG: Duration = Duration::from_secs(60);

struct Watched {
    set: Epoll,
    counter: EventFd,
    reader: PipeReader,
    writer: std::io::PipeWriter,
    above: Epoll,
}

impl Watched {
    fn new() -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        let (set, above) = (Epoll::new().unwrap(), Epoll::new().unwrap());
        let counter = EventFd::new(0).unwrap();
        set.add(&counter, Event::new(Events::IN, 1)).unwrap();
        set.add(&reader.as_fd(), Event::new(Events::IN, 2)).unwrap();
        above.add(&set, Event::new(Events::IN, 3)).unwrap();
        Watched {
            set,
            counter,
            reader,
            writer,
            above,
        }
    }

    fn kept(&self) -> [RawFd; 2] {
        [self.reader.as_raw_fd(), self.writer.as_raw_fd()]
    }

    fn wait(&self) -> u64 {
        let mut events = [Event::default(); 4];
        assert_eq!(self.set.wait(&mut events, LONG), Ok(1));
        events[0].data()
    }

    fn wait_above(&self) -> u64 {
        let mut events = [Event::default(); 4];
        assert_eq!(self.above.wait(&mut events, LONG), Ok(1));
        assert_eq!(events[0].data(), 3);
        self.wait()
    }

    fn poll(&self, poll: impl FnOnce(&mut [PollFd<'_>]) -> Result<usize, upoll::Errno>) -> u64 {
        let mut fds = [
            PollFd::new(&self.counter, Events::IN),
            PollFd::new(&self.reader, Events::IN),
        ];
        assert_eq!(poll(&mut fds), Ok(1));
        fds.iter().position(|fd| !fd.revents().is_empty()).unwrap() as u64 + 1
    }

    /// Checks that each event in turn wakes a thread that sleeps by `wait` while `meanwhile` runs.
    fn check(&self, wait: impl Fn(&Self) -> u64 + Sync, meanwhile: impl Fn()) {
        for event in [1, 2, 1] {
            thread::scope(|scope| {
                let (send, receive) = std::sync::mpsc::channel();
                let wait = &wait;
                let sleeper = scope.spawn(move || {
                    send.send(tid()).unwrap();
                    wait(self)
                });
                until_asleep(receive.recv().unwrap());
                meanwhile();
                match event {
                    1 => self.counter.write(1).unwrap(),
                    _ => (&self.writer).write_all(b"x").unwrap(),
                }
                assert_eq!(sleeper.join().unwrap(), event);
            });
            match event {
                1 => assert_eq!(self.counter.read(), Ok(1)),
                _ => (&self.reader).read_exact(&mut [0]).unwrap(),
            }
        }
    }

    fn check_all(&self, meanwhile: impl Fn()) {
        self.check(Self::wait, &meanwhile);
        self.check(Self::wait_above, &meanwhile);
        self.check(|this| this.poll(|fds| upoll::poll(fds, LONG)), &meanwhile);
        let context = std::sync::Mutex::new(PollContext::new());
        let by_context = |this: &Self| this.poll(|fds| context.lock().unwrap().poll(fds, LONG));
        self.check(by_context, &meanwhile);
    }
}

#[test]
fn sets_and_polls_go_on_after_all_fds_were_closed_between_calls() {
    in_child(|| {
        let watched = Watched::new();
        watched.check_all(|| ());
        close_all_but(&watched.kept());
        watched.check_all(|| ());
    });
}

#[test]
fn what_took_the_place_of_closed_fds_is_left_alone() {
    in_child(|| {
        let watched = Watched::new();
        watched.check_all(|| ());
        close_all_but(&watched.kept());
        let others = open_everywhere(&watched.kept());
        watched.check_all(|| ());
        drop(watched.counter);
        drop(watched.set);
        drop(watched.above);
        check_untouched(others);
    });
}

#[test]
fn threads_that_sleep_while_all_fds_are_closed_are_woken() {
    in_child(|| {
        let watched = Watched::new();
        watched.check_all(|| close_all_but(&watched.kept()));
        watched.check_all(|| ());
    });
}

#[test]
fn members_that_were_closed_with_the_rest_do_not_come_back_as_other_files() {
    in_child(|| {
        let watched = Watched::new();
        let (gone, other) = UnixStream::pair().unwrap();
        let free = gone.as_raw_fd();
        watched
            .set
            .add(&gone.as_fd(), Event::new(Events::IN, 4))
            .unwrap();
        close_all_but(&watched.kept());
        std::mem::forget((gone, other));
        let reuse = |fd: RawFd| {
            // SAFETY: the fd is free, or was taken by an earlier call of this.
            assert_eq!(unsafe { libc::dup2(fd, free) }, free);
        };
        // So that neither end of the pair gets the fd.
        reuse(libc::STDERR_FILENO);
        let (same, mut other) = UnixStream::pair().unwrap();
        reuse(same.as_raw_fd());
        other.write_all(b"x").unwrap();
        watched.check_all(|| ());
        assert_eq!(watched.set.len(), 2);
    });
}

#[test]
fn a_child_that_closes_everything_leaves_its_parents_threads_to_be_woken() {
    in_child(|| {
        let watched = Watched::new();
        watched.check_all(|| in_child(|| close_all_but(&[])));
    });
}

#[test]
fn changes_by_a_child_that_has_closed_everything_reach_its_parent() {
    in_child(|| {
        let shared = EventFd::shared(0, EventFdFlags::empty()).unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let set = Epoll::new().unwrap();
        set.add(&shared, Event::new(Events::IN, 1)).unwrap();
        let change = || {
            in_child(|| {
                close_all_but(&[]);
                let others = open_everywhere(&[]);
                shared.try_write(1).unwrap();
                check_untouched(others);
            });
        };
        let wait = || {
            let mut events = [Event::default(); 4];
            set.wait(&mut events, LONG)
        };
        let poll = || {
            let mut fds = [
                PollFd::new(&shared, Events::IN),
                PollFd::new(&reader, Events::IN),
            ];
            upoll::poll(&mut fds, LONG)
        };
        for wait in [&wait as &(dyn Fn() -> _ + Sync), &poll] {
            thread::scope(|scope| {
                let (send, receive) = std::sync::mpsc::channel();
                let sleeper = scope.spawn(move || {
                    send.send(tid()).unwrap();
                    wait()
                });
                until_asleep(receive.recv().unwrap());
                change();
                assert_eq!(sleeper.join().unwrap(), Ok(1));
            });
            assert_eq!(shared.read(), Ok(1));
        }
    });
}

#[test]
fn a_set_knows_its_members_without_a_free_fd() {
    in_child(|| {
        let watched = Watched::new();
        let other = EventFd::new(0).unwrap();
        let shown = watched.set.fdinfo().unwrap();
        let limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the limit is live.
        let limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(limited, 0);
        assert_eq!(watched.set.len(), 2);
        assert!(!watched.set.is_empty());
        let fds = |shown: &str| -> Vec<String> {
            let lines = shown.lines().filter_map(|line| line.split(" pos:").next());
            lines.map(str::to_owned).collect()
        };
        assert_eq!(fds(&watched.set.fdinfo().unwrap()), fds(&shown));
        watched.set.delete(&watched.reader.as_fd()).unwrap();
        watched.set.delete(&watched.counter).unwrap();
        watched.set.add(&other, Event::default()).unwrap();
        assert_eq!(watched.set.len(), 1);
    });
}

#[test]
fn a_rotating_set_knows_its_source_without_a_free_fd() {
    in_child(|| {
        let (reader, _writer) = std::io::pipe().unwrap();
        let set = Epoll::create(CreateFlags::ROTATE).unwrap();
        assert!(set.is_empty());
        set.add(&reader.as_fd(), Event::new(Events::IN, 7)).unwrap();
        let shown = set.fdinfo().unwrap();
        let limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the limit is live.
        let limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(limited, 0);
        assert_eq!(set.len(), 1);
        let before_pos = |shown: &str| shown.split(" pos:").next().map(str::to_owned);
        assert!(shown.contains("data:                7"), "{shown}");
        assert_eq!(before_pos(&set.fdinfo().unwrap()), before_pos(&shown));
        drop(reader);
        assert!(set.is_empty());
        assert_eq!(set.fdinfo().unwrap(), "");
    });
}

#[test]
fn the_number_of_members_is_the_kernels() {
    in_child(|| {
        let set = Epoll::new().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        for fd in [reader.as_fd(), writer.as_fd(), near.as_fd(), far.as_fd()] {
            set.add(&fd, Event::new(Events::IN, 0)).unwrap();
        }
        assert_eq!(set.len(), 4);
        drop(near);
        drop(writer);
        assert_eq!(set.len(), 2);
        let again = reader.try_clone().unwrap();
        let raw = reader.as_raw_fd();
        drop(reader);
        // The file stays open.
        assert_eq!(set.len(), 2);
        let (other, _writer) = std::io::pipe().unwrap();
        assert_eq!(other.as_raw_fd(), raw);
        set.add(&other.as_fd(), Event::new(Events::IN, 0)).unwrap();
        assert_eq!(set.len(), 3);
        drop(again);
        assert_eq!(set.len(), 2);
    });
}

#[test]
fn the_fds_behind_an_ancestors_sets_are_closed_in_each_child_of_a_chain() {
    fn generation(left: u32, expected: Option<usize>) {
        let watched = Watched::new();
        watched.check(Watched::wait_above, || ());
        watched.check(|this| this.poll(|fds| upoll::poll(fds, LONG)), || ());
        let kept = watched.kept();
        let own = open_in(256..1024).filter(|fd| !kept.contains(fd));
        let count = own.count();
        assert_eq!(expected.unwrap_or(count), count);
        if left > 0 {
            in_child(|| generation(left - 1, Some(count)));
        }
    }
    in_child(|| generation(10, None));
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    }
}

/// Loads a word of a system call: 0 is its number, and argument N is at 16 + 8 N.
fn load(offset: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

/// Skips `steps` if the word is not `value`.
fn unless(value: u32, steps: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, steps, value)
}

fn end_with(outcome: u32) -> libc::sock_filter {
    step(libc::BPF_RET | libc::BPF_K, 0, 0, outcome)
}

const REFUSAL: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();

fn number_of(call: libc::c_long) -> u32 {
    u32::try_from(call).unwrap()
}

/// Filters the system calls of this thread, and of its children, from now on.
fn filter_calls(mut steps: Vec<libc::sock_filter>) {
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).unwrap(),
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the filter is live, and the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        );
        assert_eq!(set, 0);
    }
}

/// Makes `getsockopt(2)` fail with `EPERM` from now on, as a seccomp filter may.
fn refuse_getsockopt() {
    filter_calls(vec![
        load(0),
        unless(number_of(libc::SYS_getsockopt), 1),
        end_with(REFUSAL),
        end_with(libc::SECCOMP_RET_ALLOW),
    ]);
}

/// Makes `kcmp(2)` fail with `EPERM`, and ends a process that adds the file `fd` to a set.
#[cfg(target_endian = "little")]
fn refuse_kcmp_and_adds_of(fd: RawFd) {
    filter_calls(vec![
        load(0),
        unless(number_of(libc::SYS_kcmp), 1),
        end_with(REFUSAL),
        unless(number_of(libc::SYS_epoll_ctl), 5),
        load(24),
        unless(libc::EPOLL_CTL_ADD.cast_unsigned(), 3),
        load(32),
        unless(fd.cast_unsigned(), 1),
        end_with(libc::SECCOMP_RET_KILL_PROCESS),
        end_with(libc::SECCOMP_RET_ALLOW),
    ]);
}

fn watched_alone(source: &impl Source) -> Watch {
    Watch::new(source, Events::IN, |_| {}).unwrap().0
}

/// The child has its parent's sets, which may get a member of that fd at any moment.
#[test]
#[cfg(target_endian = "little")]
fn a_child_closes_the_copies_of_fds_without_a_change_of_its_parents_sets() {
    in_child(|| {
        let [one, two] = [(); 2].map(|()| std::io::pipe().unwrap());
        // With the first one come the fds that all share.
        let _first = watched_alone(&one.0);
        let mut second = None;
        let copies = opened_by(|| second = Some(watched_alone(&two.0)));
        assert_eq!(copies.len(), 1);
        refuse_kcmp_and_adds_of(copies[0]);
        in_child(|| assert!(!is_open(copies[0])));
    });
}

/// A look at one copy takes the kernel longer the more members its parent's set has, but for a socket.
#[test]
fn a_child_closes_the_copies_of_sockets_without_a_look_at_its_parents_set() {
    in_child(|| {
        let (near, _far) = UnixStream::pair().unwrap();
        let _first = watched_alone(&near);
        let mut watches = Vec::new();
        let copies = opened_by(|| watches.extend((0..10).map(|_| watched_alone(&near))));
        assert_eq!(copies.len(), 10);
        filter_calls(vec![
            load(0),
            unless(number_of(libc::SYS_kcmp), 1),
            end_with(libc::SECCOMP_RET_KILL_PROCESS),
            unless(number_of(libc::SYS_openat), 1),
            end_with(libc::SECCOMP_RET_KILL_PROCESS),
            end_with(libc::SECCOMP_RET_ALLOW),
        ]);
        in_child(|| assert!(!copies.iter().copied().any(is_open)));
    });
}

/// Makes `kcmp(2)` fail with `EPERM` from now on, as a seccomp filter may.
fn refuse_kcmp() {
    filter_calls(vec![
        load(0),
        unless(number_of(libc::SYS_kcmp), 1),
        end_with(REFUSAL),
        end_with(libc::SECCOMP_RET_ALLOW),
    ]);
}

#[test]
fn a_child_without_kcmp_reads_the_list_of_its_parents_set_once() {
    in_child(|| {
        let (reader, _writer) = std::io::pipe().unwrap();
        let _first = watched_alone(&reader);
        let mut watches = Vec::new();
        let copies = opened_by(|| watches.extend((0..200).map(|_| watched_alone(&reader))));
        assert_eq!(copies.len(), 200);
        refuse_kcmp();
        let list = |fd| std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        let lists: usize = open_in(ALL).map(|fd| list(fd).len()).sum();
        in_child(|| {
            let bytes_read = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
            assert!(!copies.iter().copied().any(is_open));
            let bytes_read = bytes_read
                .lines()
                .find_map(|line| line.strip_prefix("rchar: "));
            if let Some(bytes_read) = bytes_read {
                let bytes_read: usize = bytes_read.parse().unwrap();
                assert!(bytes_read < 2 * lists, "{bytes_read} of {lists}");
            }
        });
    });
}

/// The program has closed the copies, and has others of its files under their fds.
#[test]
fn a_child_leaves_alone_what_took_the_place_of_closed_copies_of_fds() {
    let [pipe, other_pipe] = [(); 2].map(|()| std::io::pipe().unwrap().0);
    let [near, other] = [(); 2].map(|()| UnixStream::pair().unwrap().0);
    let counter = || {
        // SAFETY: the fd is new.
        unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) }
    };
    let counters = [(); 2].map(|()| counter());
    let check = |watched: BorrowedFd<'_>, other: BorrowedFd<'_>| {
        let mut watch = None;
        let copies = opened_by(|| watch = Some(watched_alone(&watched)));
        assert_eq!(copies.len(), 1);
        // SAFETY: the fd is the library's.
        let replaced = unsafe { libc::dup2(other.as_raw_fd(), copies[0]) };
        assert_eq!(replaced, copies[0]);
        in_child(|| assert!(is_open(copies[0])));
    };
    for is_refused in [false, true] {
        in_child(|| {
            let _first = watched_alone(&pipe);
            if is_refused {
                refuse_kcmp();
            }
            // All eventfds have one inode.
            check(counters[0].as_fd(), counters[1].as_fd());
            check(pipe.as_fd(), other_pipe.as_fd());
            check(near.as_fd(), other.as_fd());
        });
    }
}

#[test]
fn sets_and_polls_go_on_where_no_socket_tells_its_cookie() {
    in_child(|| {
        refuse_getsockopt();
        let watched = Watched::new();
        watched.check_all(|| ());
        close_all_but(&watched.kept());
        let others = open_everywhere(&watched.kept());
        watched.check_all(|| ());
        check_untouched(others);
    });
}

#[test]
fn sets_and_polls_go_on_when_sockets_do_not_tell_their_cookies_any_more() {
    in_child(|| {
        let watched = Watched::new();
        watched.check_all(|| ());
        refuse_getsockopt();
        watched.check_all(|| ());
        close_all_but(&watched.kept());
        watched.check_all(|| ());
    });
}

/// Harvests `set` until an event is found, without a limit.
fn look(set: &Epoll) {
    let end = Instant::now() + LONG;
    let mut events = [Event::default(); 4];
    while set.wait(&mut events, Duration::ZERO) == Ok(0) {
        assert!(Instant::now() < end);
    }
}

/// Polls `set` until it is ready, without a limit.
fn poll_now(set: &Epoll) {
    let end = Instant::now() + LONG;
    let mut fds = [PollFd::new(set, Events::IN)];
    while upoll::poll(&mut fds, Duration::ZERO) == Ok(0) {
        assert!(Instant::now() < end);
    }
}

fn wait(set: &Epoll) {
    let mut events = [Event::default(); 4];
    assert_eq!(set.wait(&mut events, LONG), Ok(1));
}

fn poll_long(set: &Epoll) {
    let mut fds = [PollFd::new(set, Events::IN)];
    assert_eq!(upoll::poll(&mut fds, LONG), Ok(1));
}

fn select_now(set: &Epoll) {
    let end = Instant::now() + LONG;
    loop {
        let mut readable = FdSet::from_iter([0]);
        let timeout = &mut Timeout::from(Duration::ZERO);
        let resolve = |_| Some(set.target());
        if upoll::select(1, Some(&mut readable), None, None, timeout, resolve) == Ok(1) {
            return;
        }
        assert!(Instant::now() < end);
    }
}

#[test]
fn each_fd_of_nested_sets_that_is_replaced_alone_is_made_anew() {
    for find in [look, poll_now, select_now, wait, poll_long] {
        in_child(|| {
            let (one, mut other) = UnixStream::pair().unwrap();
            let watched = Watched::new();
            let find_each = || {
                for set in [&watched.above, &watched.set] {
                    (&watched.writer).write_all(b"x").unwrap();
                    find(set);
                    (&watched.reader).read_exact(&mut [0]).unwrap();
                    watched.counter.write(1).unwrap();
                    find(set);
                    assert_eq!(watched.counter.read(), Ok(1));
                }
            };
            find_each();
            let own: Vec<RawFd> = open_in(256..600).collect();
            assert!(own.len() > 3, "{own:?}");
            for fd in own {
                // SAFETY: the fd is an own fd of the library.
                assert_eq!(unsafe { libc::dup2(one.as_raw_fd(), fd) }, fd);
                find_each();
            }
            other.set_nonblocking(true).unwrap();
            let read = other.read(&mut [0; 8]).unwrap_err();
            assert_eq!(read.kind(), std::io::ErrorKind::WouldBlock);
        });
    }
}

/// Calls on a set with a ready kernel fd, and the events that they find.
const CALLS: [fn(&Watched); 9] = [
    |watched| look(&watched.set),
    |watched| wait(&watched.set),
    |watched| poll_now(&watched.set),
    |watched| poll_long(&watched.set),
    |watched| select_now(&watched.set),
    |watched| look(&watched.above),
    |watched| wait(&watched.above),
    |watched| {
        let interest = Event::new(Events::IN, 9);
        watched
            .set
            .modify(&watched.reader.as_fd(), interest)
            .unwrap();
        look(&watched.set);
    },
    |watched| watched.set.delete(&watched.reader.as_fd()).unwrap(),
];

/// Directly after a call that used the fd, a kernel set of the program's that watches the same
/// fd takes it.
#[test]
fn a_kernel_set_in_place_of_an_own_fd_is_neither_polled_nor_changed() {
    for call in CALLS {
        in_child(|| {
            let mut at = 0;
            loop {
                let watched = Watched::new();
                (&watched.writer).write_all(b"x").unwrap();
                // The long poll opens the thread's wake fd as well.
                poll_long(&watched.above);
                wait(&watched.above);
                wait(&watched.set);
                let Some(own) = open_in(256..600).nth(at) else {
                    assert!(at > 3, "only {at} fds of the library's own");
                    break;
                };
                let other = other_set(watched.reader.as_raw_fd());
                // This call checks the seal; the result is cached for some milliseconds.
                wait(&watched.set);
                // SAFETY: the fd is an own fd of the library.
                assert_eq!(unsafe { libc::dup2(other, own) }, own);
                call(&watched);
                let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
                // SAFETY: there is room for two events.
                unsafe {
                    let found = libc::epoll_wait(own, events.as_mut_ptr(), 2, 0);
                    assert_eq!(found, 1, "the event was taken from the set at {own}");
                    assert_eq!({ events[0].u64 }, 7);
                    let added = libc::epoll_ctl(
                        own,
                        libc::EPOLL_CTL_ADD,
                        watched.reader.as_raw_fd(),
                        events.as_mut_ptr(),
                    );
                    assert_eq!(added, -1, "the interest was taken from the set at {own}");
                    drop(watched);
                    assert_eq!(libc::close(own), 0);
                    assert_eq!(libc::close(other), 0);
                }
                at += 1;
            }
        });
    }
}

/// The child of a fork closes the library's fds on the stack of the thread that forked, which may be that of a signal handler.
#[test]
fn a_fork_takes_little_of_the_alternate_stack_of_a_signal_handler() {
    extern "C" fn forks(_: libc::c_int) {
        // SAFETY: the child ends at once, by a call that takes no memory.
        unsafe {
            match libc::fork() {
                0 => libc::_exit(0),
                child => {
                    let mut status = 0;
                    libc::waitpid(child, &raw mut status, 0);
                    assert_eq!(status, 0);
                }
            }
        }
    }
    /// For the calls of a fork, beside the kernel's frame.
    const ROOM: usize = 3072;
    in_child(|| {
        let (reader, _writer) = std::io::pipe().unwrap();
        let _watch = watched_alone(&reader);
        // SAFETY: the memory is new, and the child alone uses it.
        unsafe {
            let least = usize::try_from(libc::getauxval(libc::AT_MINSIGSTKSZ)).unwrap();
            let used = least.max(libc::MINSIGSTKSZ) + ROOM;
            let size = used.next_multiple_of(4096);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(std::ptr::null_mut(), size + 4096, access, kind, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base, 4096, libc::PROT_NONE), 0);
            let stack = libc::stack_t {
                ss_sp: base.wrapping_byte_add(4096),
                ss_flags: 0,
                ss_size: used,
            };
            assert_eq!(libc::sigaltstack(&raw const stack, std::ptr::null_mut()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = forks as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK;
            assert_eq!(
                libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
                0
            );
            assert_eq!(libc::raise(libc::SIGUSR1), 0);
        }
    });
}
