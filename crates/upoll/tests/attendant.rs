//! The attendant of callbacks and tasks that wait for kernel fds: closed fds, forks, and limits of the process.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod callbacks;
mod open_fds;
mod threads;

use std::io::{Read, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use callbacks::{Calls, IN, LONG, alone, block_on, drain, fill, polled, watched};
use open_fds::{ALL, close_all, open_in, opened_by};
use threads::{in_child, until_others_sleep};
use upoll::{Epoll, Errno, Event, Events, Readiness, Watch};

#[test]
fn a_set_whose_own_fds_were_closed_is_registered_anew() {
    let _alone = alone();
    in_child(|| {
        let (reader, mut writer) = pipe().unwrap();
        let (other, mut its_writer) = pipe().unwrap();
        let [outer, inner] = [(); 2].map(|()| Epoll::new().unwrap());
        let edge = Event::new(Events::IN | Events::ET, 0);
        let mut watches = None;
        let own = opened_by(|| {
            inner.add(&reader, edge).unwrap();
            outer.add(&inner, IN).unwrap();
            outer.add(&other, edge).unwrap();
            watches = Some([watched(&inner, Events::IN), watched(&outer, Events::IN)]);
            outer.readiness_fd().unwrap();
        });
        assert!(own.len() >= 3, "{own:?}");
        let watches = watches.unwrap();
        close_all(&own);
        // Other files get their fds.
        let _others = pipe().unwrap();
        let counts = watches.each_ref().map(|(_, _, calls)| calls.count());
        fill(&mut writer);
        watches[0].2.until(counts[0] + 1);
        watches[1].2.until(counts[1] + 1);
        assert_eq!(inner.try_wait(&mut [IN]), Ok(1));
        assert!(outer.try_wait(&mut [IN; 4]).is_ok());
        let count = watches[1].2.count();
        fill(&mut its_writer);
        watches[1].2.until(count + 1);
        assert!(outer.try_wait(&mut [IN; 4]).unwrap() >= 1);
    });
}

/// The kernel set of the attendant, and copies of fds.
#[test]
fn a_wait_whose_copy_of_the_fd_was_closed_ends_and_sets_go_on() {
    let _alone = alone();
    in_child(|| {
        // So that the attendant is there, with the fds that it needs.
        let (idle, _writer) = pipe().unwrap();
        let _keeps = watched(&idle, Events::IN);
        let (reader, mut writer) = pipe().unwrap();
        let set = Epoll::new().unwrap();
        set.add(&reader, Event::new(Events::IN | Events::ET, 0))
            .unwrap();
        let in_set = watched(&set, Events::IN);
        let mut bare = None;
        let copy = opened_by(|| bare = Some(watched(&reader, Events::IN)));
        assert_eq!(copy.len(), 1);
        let (watch, _, calls) = bare.unwrap();
        let mut ready = Box::pin(Readiness::new(&reader, Events::IN).unwrap());
        assert!(polled(ready.as_mut(), &Arc::default()).is_pending());
        close_all(&copy);
        calls.until(1);
        assert_eq!(calls.events(), Events::HUP);
        assert_eq!(watch.ready(), Events::HUP);
        // Nothing of the program's is closed in its place.
        // SAFETY: the fd is free.
        assert_eq!(unsafe { libc::dup2(idle.as_raw_fd(), copy[0]) }, copy[0]);
        drop(watch);
        close_all(&copy);
        // All sets of the library: the attendant loses its own.
        let sets: Vec<_> = open_in(ALL).filter(|&fd| is_set(fd)).collect();
        assert!(sets.len() >= 2);
        close_all(&sets);
        assert_eq!(block_on(ready), Events::HUP);
        let count = in_set.2.count();
        fill(&mut writer);
        in_set.2.until(count + 1);
        let again = Readiness::new(&reader, Events::IN).unwrap();
        assert_eq!(block_on(again), Events::IN);
    });
}

#[test]
fn a_kernel_fd_whose_copy_was_closed_is_waited_for_again() {
    let _alone = alone();
    in_child(|| {
        let (idle, _writer) = pipe().unwrap();
        let _keeps = watched(&idle, Events::IN);
        let (reader, mut writer) = pipe().unwrap();
        let mut first = Vec::new();
        let copies = opened_by(|| first.extend((0..30).map(|_| watched(&reader, Events::IN))));
        close_all(&copies);
        for (_, _, calls) in &first {
            calls.until(1);
        }
        first.truncate(15);
        // The kernel has the same fds for the copies, under which their file is still registered.
        let mut second = Vec::new();
        let others = opened_by(|| second.extend((0..30).map(|_| watched(&reader, Events::IN))));
        assert_eq!(others, copies);
        // The ends of the first waits end none of the second ones.
        drop(first);
        fill(&mut writer);
        for (_, _, calls) in &second {
            calls.until(1);
        }
    });
}

/// No call on a set fails because the program has closed the kernel set of the attendant, which the set's callbacks need.
#[test]
fn a_watched_set_goes_on_right_after_all_fds_were_closed() {
    let _alone = alone();
    in_child(|| {
        let (mut reader, mut writer) = pipe().unwrap();
        let [outer, inner, below] = [(); 3].map(|()| Epoll::new().unwrap());
        for set in [&outer, &inner, &below] {
            set.add(&reader, IN).unwrap();
        }
        let (_watch, _, calls) = watched(&outer, Events::IN);
        fill(&mut writer);
        calls.until(1);
        // The attendant may make one anew meanwhile, and opens it below 256 for a moment.
        let close_sets = || {
            for fd in open_in(256..ALL.end).filter(|&fd| is_set(fd)) {
                // SAFETY: this test has no fds there.
                unsafe { libc::close(fd) };
            }
        };
        close_sets();
        // It gets a nesting fd, which the attendant is to watch.
        outer.add(&inner, IN).unwrap();
        close_sets();
        assert_eq!(outer.try_wait(&mut [IN; 4]), Ok(2));
        close_sets();
        assert_eq!(outer.wait(&mut [IN; 4], LONG), Ok(2));
        close_sets();
        let (_other_watch, ready, other_calls) = watched(&below, Events::IN);
        assert_eq!(ready, Events::IN);
        drain(&mut reader);
        let counts = [calls.count(), other_calls.count()];
        fill(&mut writer);
        calls.until(counts[0] + 1);
        other_calls.until(counts[1] + 1);
    });
}

/// The set gets a nesting fd in the child, where the attendant of its callbacks does not exist.
#[test]
fn a_child_adds_a_set_to_one_that_callbacks_of_its_parent_wait_for() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    let [outer, inner] = [(); 2].map(|()| Epoll::new().unwrap());
    outer.add(&reader, IN).unwrap();
    inner.add(&reader, IN).unwrap();
    let (_watch, _, calls) = watched(&outer, Events::IN);
    // A lock that the attendant holds at the fork stays locked in the child.
    until_others_sleep();
    in_child(|| {
        // SAFETY: a hanging child is ended.
        unsafe { libc::alarm(60) };
        outer.add(&inner, IN).unwrap();
        fill(&mut writer);
        assert_eq!(outer.try_wait(&mut [IN; 4]), Ok(2));
    });
    calls.until(1);
}

fn is_set(fd: RawFd) -> bool {
    let file = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    file.is_ok_and(|file| file.to_string_lossy().contains("[eventpoll]"))
}

#[test]
fn the_child_of_a_fork_has_an_attendant_of_its_own() {
    let _alone = alone();
    let limit = libc::rlimit {
        rlim_cur: 4000,
        rlim_max: 4000,
    };
    let (reader, mut writer) = pipe().unwrap();
    let set = Epoll::new().unwrap();
    set.add(&reader, IN).unwrap();
    let kept = [watched(&reader, Events::IN), watched(&set, Events::IN)];
    let mut inherited = Some([watched(&reader, Events::IN), watched(&set, Events::IN)]);
    for _ in 0..5 {
        until_others_sleep();
        in_child(|| {
            // SAFETY: a hanging child is ended; it may not fork without end.
            unsafe {
                libc::alarm(60);
                libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit);
            }
            // The attendant sleeps. This neither waits for it, nor takes the parent's registration away.
            drop(inherited.take());
            let (mut reader, mut writer) = pipe().unwrap();
            let set = Epoll::new().unwrap();
            set.add(&reader, IN).unwrap();
            let ready = Readiness::new(&reader, Events::IN).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| fill(&mut writer));
                assert_eq!(block_on(ready), Events::IN);
            });
            assert_eq!(block_on(set.wait_async(&mut [IN])), Ok(1));
            drain(&mut reader);
            let task = Arc::new(Calls::default());
            let mut wait = Box::pin(Readiness::new(&set, Events::IN).unwrap());
            assert!(polled(wait.as_mut(), &task).is_pending());
            fill(&mut writer);
            task.until(1);
        });
    }
    fill(&mut writer);
    for (_, _, calls) in kept.iter().chain(inherited.iter().flatten()) {
        calls.until(1);
    }
}

/// In the child the attendant's thread is the only one, and has nothing to wait for.
#[test]
fn the_child_of_a_callback_that_forks_ends_and_calls_no_other_callback() {
    static IS_CHILD: AtomicBool = AtomicBool::new(false);
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    let (idle, _writer) = pipe().unwrap();
    let called = |_| {
        if IS_CHILD.load(Ordering::SeqCst) {
            // SAFETY: the child ends at once.
            unsafe { libc::_exit(77) };
        }
    };
    let _others = [&idle, &reader].map(|other| Watch::new(other, Events::IN, called).unwrap());
    let (send, receive) = std::sync::mpsc::channel();
    let (_watch, _) = Watch::new(&reader, Events::IN, move |_| {
        // SAFETY: a hanging child is ended.
        let child = unsafe { libc::fork() };
        if child == 0 {
            IS_CHILD.store(true, Ordering::SeqCst);
            // SAFETY: as above.
            unsafe { libc::alarm(60) };
            // The next check of the copies is due by then.
            thread::sleep(Duration::from_millis(600));
        } else {
            send.send(child).unwrap();
        }
    })
    .unwrap();
    fill(&mut writer);
    let child = receive.recv_timeout(LONG).unwrap();
    let mut status = -1;
    // SAFETY: it is this process's child, and the status is live.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's exit status");
}

/// A child does not keep the file of its parent's program open.
#[test]
fn the_child_of_a_fork_closes_the_copies_of_fds() {
    let _alone = alone();
    in_child(|| {
        let (reader, mut writer) = pipe().unwrap();
        let (idle, _writer) = pipe().unwrap();
        let _keeps = watched(&idle, Events::IN);
        let mut bare = None;
        let copy = opened_by(|| bare = Some(watched(&reader, Events::IN)));
        assert_eq!(copy.len(), 1);
        in_child(|| {
            // SAFETY: the call takes no pointers.
            assert_eq!(unsafe { libc::fcntl(copy[0], libc::F_GETFD) }, -1);
            drop(bare.take());
            drop(reader.try_clone().unwrap());
        });
        fill(&mut writer);
        bare.unwrap().2.until(1);
    });
}

/// A child that looks whether a copy is its parent's may meet a wait that begins at the same fd.
#[test]
fn no_wait_that_begins_beside_a_fork_is_lost() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    let (idle, _writer) = pipe().unwrap();
    let _keeps: Vec<_> = (0..50).map(|_| watched(&idle, Events::IN)).collect();
    for _ in 0..500 {
        let before: Vec<_> = (0..50).map(|_| watched(&reader, Events::IN)).collect();
        // SAFETY: the child, which closes its copies before the call returns, ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        drop(before);
        let after: Vec<_> = (0..50).map(|_| watched(&reader, Events::IN)).collect();
        // SAFETY: it is this process's child; no status is asked for.
        assert_eq!(unsafe { libc::waitpid(child, ptr::null_mut(), 0) }, child);
        fill(&mut writer);
        for (_, _, calls) in &after {
            calls.until(1);
        }
        let mut reader = &reader;
        assert_eq!(reader.read(&mut [0; 64]).unwrap(), 1);
    }
}

/// Ends the other thread, also after a panic, which would otherwise wait for it.
struct EndsOther<'a>(&'a AtomicBool);

impl Drop for EndsOther<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The program has closed the copy of one wait, and that of the next one gets its fd while the first is looked at.
#[test]
fn a_look_at_a_wait_whose_copy_was_closed_meets_no_wait_that_begins_at_its_fd() {
    let _alone = alone();
    in_child(|| {
        let (idle, _writer) = pipe().unwrap();
        let _keeps = watched(&idle, Events::IN);
        let mut first = None;
        let copy = opened_by(|| first = Some(watched(&idle, Events::IN)));
        drop(first);
        let (reader, mut writer) = pipe().unwrap();
        let looked_at = RwLock::new(None);
        let is_over = AtomicBool::new(false);
        let begins = || {
            let (lost, _writer) = pipe().unwrap();
            *looked_at.write().unwrap() = Some(watched(&lost, Events::IN).0);
            close_all(&copy);
            let calls = Arc::new(Calls::default());
            let counted = calls.clone();
            let second = Watch::new(&reader, Events::IN, move |events| counted.call(events))?;
            *looked_at.write().unwrap() = None;
            fill(&mut writer);
            calls.until(1);
            let mut reader = &reader;
            assert_eq!(reader.read(&mut [0; 64]).unwrap(), 1);
            drop(second);
            Ok::<(), Errno>(())
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    match &*looked_at.read().unwrap() {
                        Some(watch) => drop::<Events>(Watch::ready(watch)),
                        None => thread::yield_now(),
                    }
                }
            });
            let _ends_other = EndsOther(&is_over);
            // A round takes tenths of a second where other programs have the processors.
            let end = Instant::now() + Duration::from_secs(10);
            let mut rounds = std::iter::repeat_with(begins).take(30_000);
            while Instant::now() < end && rounds.next().map(Result::unwrap).is_some() {}
        });
    });
}

/// Sets the limit of open files, and returns the one before.
fn limit_of_files(limit: Option<libc::rlim_t>) -> libc::rlimit {
    let mut before = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structures are live.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before);
        let now = libc::rlimit {
            rlim_cur: limit.unwrap_or(before.rlim_max).min(before.rlim_max),
            ..before
        };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now), 0);
    }
    before
}

#[test]
fn a_thousand_registrations_all_wake_and_leave_nothing() {
    let _alone = alone();
    in_child(|| {
        limit_of_files(None);
        let (idle, _writer) = pipe().unwrap();
        let _keeps = watched(&idle, Events::IN);
        let before = open_in(ALL).count();
        let (reader, mut writer) = pipe().unwrap();
        let mut sets = Vec::new();
        let mut waits = Vec::new();
        for at in 0..1000 {
            if at % 4 == 0 {
                let set = Epoll::new().unwrap();
                set.add(&reader, IN).unwrap();
                waits.push(Box::pin(Readiness::new(&set, Events::IN).unwrap()));
                sets.push(set);
            } else {
                waits.push(Box::pin(Readiness::new(&reader, Events::IN).unwrap()));
            }
        }
        let tasks: Vec<Arc<Calls>> = waits.iter().map(|_| Arc::default()).collect();
        for (wait, task) in waits.iter_mut().zip(&tasks) {
            assert!(polled(wait.as_mut(), task).is_pending());
        }
        fill(&mut writer);
        for task in &tasks {
            task.until(1);
        }
        for (wait, task) in waits.iter_mut().zip(&tasks) {
            assert_eq!(polled(wait.as_mut(), task), Poll::Ready(Events::IN));
        }
        drop((waits, sets, reader, writer));
        // Seals of the sets stay.
        let left = open_in(ALL).count() - before;
        assert!(left <= 1000 / 4 / 8 + 2, "{left} fds are left");
    });
}

#[test]
fn without_an_fd_a_registration_fails_and_leaves_nothing() {
    let _alone = alone();
    in_child(|| {
        let (reader, mut writer) = pipe().unwrap();
        let set = Epoll::new().unwrap();
        let (idle, _writer) = pipe().unwrap();
        let _keeps = watched(&idle, Events::IN);
        let before: Vec<_> = open_in(ALL).collect();
        in_child(|| {
            limit_of_files(Some(3));
            for refused in [
                Watch::new(&reader, Events::IN, |_| ()).err(),
                Readiness::new(&reader, Events::IN).err(),
                set.add(&reader, IN).err(),
            ] {
                assert_eq!(refused, Some(Errno::MFILE));
            }
        });
        let all = limit_of_files(Some(3));
        let refused = Watch::new(&reader, Events::IN, |_| ()).err();
        limit_of_files(Some(all.rlim_cur));
        assert_eq!(refused, Some(Errno::MFILE));
        assert!(open_in(ALL).eq(before));
        let (_watch, _, calls) = watched(&reader, Events::IN);
        fill(&mut writer);
        calls.until(1);
    });
}

/// The next ADD uses all that a refused one has made for a set, and it goes with the set.
#[test]
fn refused_adds_leave_no_more_than_one_does() {
    let _alone = alone();
    in_child(|| {
        let (idle, _writer) = pipe().unwrap();
        let _keeps = watched(&idle, Events::IN);
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let before: Vec<_> = open_in(ALL).collect();
        let [set, above] = [(); 2].map(|()| Epoll::new().unwrap());
        above.add(&set, IN).unwrap();
        let watches = [watched(&set, Events::IN), watched(&above, Events::IN)];
        let shown = set.readiness_fd().unwrap();
        let refuse = || assert_eq!(set.add(&file, IN), Err(Errno::PERM));
        refuse();
        let after_one: Vec<_> = open_in(ALL).collect();
        (0..100).for_each(|_| refuse());
        assert_eq!(open_in(ALL).collect::<Vec<_>>(), after_one);
        drop((watches, set, above, shown));
        // A seal may stay.
        let left = open_in(ALL).count() - before.len();
        assert!(left <= 1, "{left} fds are left");
    });
}

/// Without room for another thread.
#[test]
fn without_a_thread_a_registration_fails_and_the_next_one_works() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    in_child(|| {
        // As root has no such limit, the child becomes another user.
        let limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 4000,
        };
        // SAFETY: the structure is live.
        unsafe {
            libc::alarm(60);
            libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit);
            if libc::getuid() == 0 && libc::setuid(65_534) != 0 {
                return;
            }
        }
        let refused = Watch::new(&reader, Events::IN, |_| ()).err();
        assert_eq!(refused, Some(Errno::AGAIN));
        // SAFETY: as above.
        unsafe {
            let limit = libc::rlimit {
                rlim_cur: 4000,
                ..limit
            };
            libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit);
        }
        let (_watch, _, calls) = watched(&reader, Events::IN);
        fill(&mut writer);
        calls.until(1);
    });
}

/// Returns the signals that the attendant blocks, if it is there.
fn blocked_by_the_attendant() -> Option<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.flatten().find_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let is_attendant = line("Name:")?.trim() == "upoll-attendant";
        let blocked = line("SigBlk:")?.trim();
        is_attendant.then(|| u64::from_str_radix(blocked, 16).unwrap())
    })
}

#[test]
fn the_attendant_blocks_signals_but_those_of_faults_and_ends_when_it_is_of_no_use() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    for _ in 0..2 {
        let (watch, _, calls) = watched(&reader, Events::IN);
        fill(&mut writer);
        calls.until(1);
        let blocked = blocked_by_the_attendant().unwrap();
        let is_blocked = |signal: i32| blocked >> (signal - 1) & 1 == 1;
        for open in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGILL,
            libc::SIGFPE,
            libc::SIGTRAP,
            libc::SIGABRT,
        ] {
            assert!(!is_blocked(open), "{open}");
        }
        for closed in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGUSR1] {
            assert!(is_blocked(closed), "{closed}");
        }
        drop(watch);
        let begin = Instant::now();
        while blocked_by_the_attendant().is_some() {
            assert!(begin.elapsed() < LONG);
            thread::sleep(Duration::from_millis(20));
        }
    }
}
