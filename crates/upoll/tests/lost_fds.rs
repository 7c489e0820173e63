//! A program closes fds that it did not open, and then opens others that get the same fds. The
//! library leaves those files alone.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

#[path = "../../upoll-fds/tests/notified/mod.rs"]
mod notified;
mod open_fds;
mod threads;

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use notified::{Answer, Which, answered};
use open_fds::{ALL, close_all, open_in, opened_by, other_set};
use threads::{tid, until_asleep};
use upoll::{
    CreateFlags, CtlCommand, Epoll, Errno, Event, EventFd, EventFdFlags, Events, FdSet, File,
    PollContext, PollFd, PollTable, Pollable, Source, Timeout, WaitQueue, poll, select,
};

const LONG: Duration = Duration::from_secs(60);

/// Runs one test at a time: each depends on getting the fds that it has closed.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn input(data: u64) -> Event {
    Event::new(Events::IN, data)
}

fn wait(set: &Epoll, limit: Duration) -> Vec<u64> {
    let events = &mut [Event::default(); 8];
    let ready = set.wait(events, limit).unwrap();
    events[..ready].iter().map(Event::data).collect()
}

#[test]
fn a_set_whose_kernel_set_was_closed_leaves_the_one_with_its_fd_alone() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    // The first set opens the socket that is a member of all kernel sets.
    let warm_up = Epoll::new().unwrap();
    warm_up.add(&reader, input(1)).unwrap();
    let lost = Epoll::new().unwrap();
    let own = opened_by(|| lost.add(&reader, input(2)).unwrap());
    assert_eq!(own.len(), 1, "its kernel set: {own:?}");
    close_all(&own);
    let set = Epoll::new().unwrap();
    let again = opened_by(|| set.add(&reader, input(3)).unwrap());
    assert_eq!(own, again, "the fd that was closed is given out again");
    assert_eq!(wait(&set, Duration::ZERO), []);
    drop(lost);
    writer.write_all(b"x").unwrap();
    assert_eq!(wait(&set, LONG), [3]);
}

#[test]
fn a_rotating_set_whose_fds_were_closed_replaces_no_file_of_the_programs() {
    let _alone = alone();
    let (reader, _writer) = std::io::pipe().unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    let own = opened_by(|| rotating.add(&reader, input(1)).unwrap());
    assert!(!own.is_empty());
    close_all(&own);
    let others: Vec<_> = own.iter().map(|_| std::io::pipe().unwrap()).collect();
    for (&fd, (other, _)) in own.iter().zip(&others) {
        // SAFETY: nothing else uses the fd.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
    }
    let _ = rotating.modify(&reader, input(2));
    let _ = rotating.delete(&reader);
    drop(rotating);
    let file = |fd| std::fs::read_link(format!("/proc/self/fd/{fd}"));
    for (&fd, (other, _)) in own.iter().zip(&others) {
        assert_eq!(file(fd).unwrap(), file(other.as_raw_fd()).unwrap());
    }
    close_all(&own);
}

#[test]
fn a_wait_without_a_limit_right_after_all_was_closed_finds_the_ready_members() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"x").unwrap();
    let inner = Epoll::new().unwrap();
    let own = opened_by(|| {
        inner.add(&reader, input(1)).unwrap();
        assert_eq!(wait(&inner, Duration::ZERO), [1]);
    });
    close_all(&own);
    assert_eq!(wait(&inner, Duration::ZERO), [1]);

    let outer = Epoll::new().unwrap();
    let own = opened_by(|| {
        outer.add(&inner, input(2)).unwrap();
        outer.add(&reader, input(3)).unwrap();
        assert_eq!(wait(&outer, Duration::ZERO).len(), 2);
    });
    close_all(&own);
    // The first harvest may be filled with members that need no kernel set.
    let found = [0; 2].map(|_| wait(&outer, Duration::ZERO)).concat();
    assert!(found.contains(&2) && found.contains(&3), "{found:?}");
}

#[test]
fn two_waits_without_a_limit_right_after_all_was_closed_both_find_the_ready_member() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"x").unwrap();
    let (idle, _writer) = std::io::pipe().unwrap();
    let before: Vec<_> = open_in(ALL).collect();
    let [inner, outer] = [(); 2].map(|()| Epoll::new().unwrap());
    inner.add(&idle, input(1)).unwrap();
    outer.add(&inner, input(2)).unwrap();
    outer.add(&reader, input(3)).unwrap();
    let together = Barrier::new(2);
    for _ in 0..1500 {
        let own: Vec<_> = open_in(ALL).filter(|fd| !before.contains(fd)).collect();
        close_all(&own);
        let waits = || {
            together.wait();
            [(); 40].map(|()| wait(&outer, Duration::ZERO))
        };
        let found = thread::scope(|scope| {
            let other = scope.spawn(waits);
            [waits(), other.join().unwrap()]
        });
        assert!(
            found.iter().flatten().all(|found| *found == [3]),
            "{found:?}"
        );
    }
}

/// An object whose `poll` waits while the lock is held.
struct Held(WaitQueue, Mutex<()>);

impl Pollable for Held {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.0);
        drop(self.1.lock().unwrap());
        Events::empty()
    }
}

/// One thread makes the set below anew, and cannot link it yet. Another one, which finds its event, finds it in the set above
/// as well.
#[test]
fn a_set_that_was_just_made_anew_shows_in_the_one_above_what_it_shows_itself() {
    let _alone = alone();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let (idle, _writer) = std::io::pipe().unwrap();
    let [warm_up, inner, outer] = [(); 3].map(|()| Epoll::new().unwrap());
    warm_up.add(&idle, input(0)).unwrap();
    let held = File::new(Held(WaitQueue::new(), Mutex::new(())));
    outer.add(&held, input(3)).unwrap();
    outer.add(&warm_up, input(0)).unwrap();
    let others: Vec<_> = open_in(ALL).collect();
    inner.add(&reader, input(1)).unwrap();
    outer.add(&inner, input(2)).unwrap();
    for _ in 0..20 {
        assert_eq!(wait(&outer, Duration::ZERO), []);
        let own: Vec<_> = open_in(ALL).filter(|fd| !others.contains(fd)).collect();
        close_all(&own);
        writer.write_all(b"x").unwrap();
        thread::scope(|scope| {
            let polls = held.1.lock().unwrap();
            let outer = &outer;
            sleep_with_the_lock(scope, outer, &held);
            let (send, receive) = std::sync::mpsc::channel();
            let [makes_anew, finds] = [(&inner, 1), (outer, 2)].map(|(set, data)| {
                let send = send.clone();
                let thread = scope.spawn(move || {
                    send.send(tid()).unwrap();
                    assert_eq!(wait(set, Duration::ZERO), [data]);
                });
                until_asleep(receive.recv().unwrap());
                assert_eq!(wait(&inner, Duration::ZERO), [1]);
                thread
            });
            drop(polls);
            makes_anew.join().unwrap();
            finds.join().unwrap();
        });
        reader.read_exact(&mut [0]).unwrap();
    }
}

/// Starts a thread that sleeps with the lock of `set`. It changes the interest in `held`, whose poll waits for what the
/// caller has locked.
fn sleep_with_the_lock<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    set: &'scope Epoll,
    held: &'scope File<Held>,
) {
    let (send, receive) = std::sync::mpsc::channel();
    scope.spawn(move || {
        send.send(tid()).unwrap();
        set.modify(held, input(3)).unwrap();
    });
    until_asleep(receive.recv().unwrap());
}

/// The thread that makes the set anew is held up before it has linked it to all sets above.
#[test]
fn a_set_that_was_just_made_anew_shows_in_each_of_two_above_while_the_other_one_is_locked() {
    let _alone = alone();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let (idle, _writer) = std::io::pipe().unwrap();
    let [warm_up, inner, one, two] = [(); 4].map(|()| Epoll::new().unwrap());
    warm_up.add(&idle, input(0)).unwrap();
    let held = File::new(Held(WaitQueue::new(), Mutex::new(())));
    let above = [&one, &two];
    for set in above {
        set.add(&warm_up, input(0)).unwrap();
    }
    let others: Vec<_> = open_in(ALL).collect();
    inner.add(&reader, input(1)).unwrap();
    for set in above {
        set.add(&inner, input(2)).unwrap();
    }
    for (locked, free) in [(&one, &two), (&two, &one)] {
        locked.add(&held, input(3)).unwrap();
        assert_eq!(wait(free, Duration::ZERO), []);
        let own: Vec<_> = open_in(ALL).filter(|fd| !others.contains(fd)).collect();
        close_all(&own);
        writer.write_all(b"x").unwrap();
        thread::scope(|scope| {
            let polls = held.1.lock().unwrap();
            sleep_with_the_lock(scope, locked, &held);
            let (send, receive) = std::sync::mpsc::channel();
            let inner = &inner;
            scope.spawn(move || {
                send.send(tid()).unwrap();
                assert_eq!(wait(inner, Duration::ZERO), [1]);
            });
            until_asleep(receive.recv().unwrap());
            let finds = scope.spawn(move || {
                assert_eq!(wait(inner, Duration::ZERO), [1]);
                assert_eq!(wait(free, Duration::ZERO), [2]);
            });
            for _ in 0..60_000 {
                if finds.is_finished() {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            let is_found = finds.is_finished();
            drop(polls);
            finds.join().unwrap();
            assert!(
                is_found,
                "it waits for a set that it has nothing to do with"
            );
        });
        assert_eq!(wait(locked, Duration::ZERO), [2]);
        locked.delete(&held).unwrap();
        reader.read_exact(&mut [0]).unwrap();
    }
}

/// A thread that checks the lost set meets the one that another thread makes in its place.
#[test]
fn threads_that_make_a_set_anew_leave_one_kernel_set() {
    let _alone = alone();
    let (reader, _writer) = std::io::pipe().unwrap();
    let [warm_up, inner, outer] = [(); 3].map(|()| Epoll::new().unwrap());
    warm_up.add(&reader, input(0)).unwrap();
    outer.add(&warm_up, input(0)).unwrap();
    let others: Vec<_> = open_in(ALL).collect();
    inner.add(&reader, input(1)).unwrap();
    outer.add(&inner, input(2)).unwrap();
    let together = Barrier::new(2);
    for round in 0..3000 {
        let own: Vec<_> = open_in(ALL).filter(|fd| !others.contains(fd)).collect();
        assert_eq!(own.len(), 1);
        close_all(&own);
        let waits = |after| {
            together.wait();
            (0..after).for_each(|_| std::hint::spin_loop());
            [&inner, &outer].map(|set| wait(set, Duration::ZERO))
        };
        thread::scope(|scope| {
            scope.spawn(|| waits(round % 50 * 40));
            waits(0);
        });
    }
}

#[test]
fn a_set_below_one_whose_fds_were_closed_takes_another_set() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let [lowest, set, outer] = [(); 3].map(|()| Epoll::new().unwrap());
    lowest.add(&reader, input(1)).unwrap();
    set.add(&reader, input(2)).unwrap();
    let own = opened_by(|| outer.add(&set, input(3)).unwrap());
    assert!(!own.is_empty());
    close_all(&own);
    set.add(&lowest, input(4)).unwrap();
    writer.write_all(b"x").unwrap();
    assert_eq!(wait(&outer, LONG), [3]);
    assert_eq!(wait(&set, LONG).len(), 2);
}

#[test]
fn a_poll_of_a_set_right_after_all_was_closed_finds_it_ready() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"x").unwrap();
    let set = Epoll::new().unwrap();
    let own = opened_by(|| set.add(&reader, input(1)).unwrap());
    assert_eq!(wait(&set, Duration::ZERO), [1]);
    close_all(&own);
    let fds = &mut [PollFd::new(&set, Events::IN)];
    assert_eq!(poll(fds, Duration::ZERO), Ok(1));
}

#[test]
fn a_kernel_set_made_anew_under_its_old_fd_is_watched_by_the_sets_above() {
    let _alone = alone();
    let edge = |data| Event::new(Events::IN | Events::ET, data);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let [warm_up, inner, outer] = [(); 3].map(|()| Epoll::new().unwrap());
    warm_up.add(&reader, edge(1)).unwrap();
    let own = opened_by(|| inner.add(&reader, edge(2)).unwrap());
    outer.add(&inner, edge(3)).unwrap();
    assert_eq!(wait(&outer, Duration::ZERO), []);
    close_all(&own);
    // Another set of the library's has the fd meanwhile.
    let between = Epoll::new().unwrap();
    let taken = opened_by(|| between.add(&reader, edge(4)).unwrap());
    assert_eq!(taken, own);
    drop(between);
    let anew = opened_by(|| assert_eq!(wait(&inner, Duration::ZERO), []));
    assert_eq!(anew, own);
    for _ in 0..2 {
        while !wait(&outer, Duration::ZERO).is_empty() {}
        writer.write_all(b"x").unwrap();
        assert_eq!(wait(&outer, LONG), [3]);
        assert_eq!(wait(&inner, Duration::ZERO), [2]);
    }
}

#[test]
fn two_sets_that_were_made_anew_with_each_others_fds_are_both_watched() {
    let _alone = alone();
    let edge = |data| Event::new(Events::IN | Events::ET, data);
    let mut pipes = [(); 2].map(|()| std::io::pipe().unwrap());
    let [warm_up, first, second, outer] = [(); 4].map(|()| Epoll::new().unwrap());
    warm_up.add(&pipes[0].0, edge(1)).unwrap();
    let own = opened_by(|| {
        first.add(&pipes[0].0, edge(1)).unwrap();
        second.add(&pipes[1].0, edge(2)).unwrap();
    });
    assert_eq!(own.len(), 2);
    outer.add(&first, edge(3)).unwrap();
    outer.add(&second, edge(4)).unwrap();
    close_all(&own);
    for set in [&second, &first] {
        assert_eq!(wait(set, Duration::ZERO), []);
    }
    while !wait(&outer, Duration::ZERO).is_empty() {}
    for (pipe, data) in pipes.iter_mut().zip([3, 4]) {
        pipe.1.write_all(b"x").unwrap();
        assert_eq!(wait(&outer, LONG), [data]);
    }
}

#[test]
fn a_member_whose_fd_came_to_be_a_file_that_cannot_be_one_keeps_no_set_from_being_made_anew() {
    let _alone = alone();
    // A file that cannot be watched, with the inode that eventfds have. Kernels without Landlock make none.
    let handled_access = [1_u64];
    let size = size_of_val(&handled_access);
    // SAFETY: the attributes are live, and as long as is claimed.
    let other = unsafe {
        let create = libc::SYS_landlock_create_ruleset;
        libc::syscall(create, handled_access.as_ptr(), size, 0)
    };
    let Some(other) = RawFd::try_from(other).ok().filter(|&fd| fd >= 0) else {
        return;
    };
    // SAFETY: the call takes no pointers, and the fd is new.
    let member = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    // SAFETY: as above.
    let other = unsafe { OwnedFd::from_raw_fd(other) };
    let (reader, mut writer) = std::io::pipe().unwrap();
    let [warm_up, set] = [(); 2].map(|()| Epoll::new().unwrap());
    warm_up.add(&reader, input(1)).unwrap();
    let own = opened_by(|| set.add(&member, input(1)).unwrap());
    set.add(&reader, input(2)).unwrap();
    // SAFETY: both are this test's.
    let placed = unsafe { libc::dup2(other.as_raw_fd(), member.as_raw_fd()) };
    assert_eq!(placed, member.as_raw_fd());
    close_all(&own);
    writer.write_all(b"x").unwrap();
    assert_eq!(wait(&set, Duration::ZERO), [2]);
}

#[test]
fn a_member_whose_fd_came_to_be_an_own_fd_keeps_no_set_from_being_made_anew() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let lost = Epoll::new().unwrap();
    // The lowest fd that the library takes, so that the next kernel set has it.
    // SAFETY: the calls take no pointers.
    let counter = unsafe {
        let low = libc::eventfd(1, libc::EFD_CLOEXEC);
        let counter = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, 256);
        assert_eq!(libc::close(low), 0);
        // SAFETY: it was just opened.
        OwnedFd::from_raw_fd(counter)
    };
    let own = opened_by(|| {
        lost.add(&counter, input(1)).unwrap();
        lost.add(&reader, input(2)).unwrap();
    });
    assert!(own.iter().all(|&fd| fd > counter.as_raw_fd()), "{own:?}");
    close_all(&own);
    drop(counter);
    assert_eq!(wait(&lost, Duration::ZERO), []);
    writer.write_all(b"x").unwrap();
    assert_eq!(wait(&lost, LONG), [2]);
}

#[test]
fn a_batch_that_begins_with_a_kernel_fd_finds_a_set_that_was_closed() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let lost = Epoll::new().unwrap();
    let own = opened_by(|| lost.add(&reader, input(1)).unwrap());
    close_all(&own);
    let commands = &mut [CtlCommand::modify(&reader, input(2))];
    assert_eq!(lost.ctl_batch(commands), Ok(1));
    writer.write_all(b"x").unwrap();
    assert_eq!(wait(&lost, LONG), [2]);
}

/// Makes a batch of `count` MODs of `reader`, with data from 1 on. Returns how many ADDs, which are checks, the library has
/// made. `before_mod` is called before each MOD, with how many there were.
fn checks_of_a_batch(
    set: &Epoll,
    reader: &std::io::PipeReader,
    count: u64,
    mut before_mod: impl FnMut(u32) + Send,
) -> u32 {
    let modify = |data| CtlCommand::modify(reader, input(data));
    let which = Which {
        number: libc::SYS_epoll_ctl,
        argument: 1,
        bits: 3,
    };
    let (mut checks, mut mods) = (0, 0);
    answered(
        which,
        |call| {
            match i32::try_from(call.arguments()[1]).unwrap() {
                libc::EPOLL_CTL_ADD => checks += 1,
                libc::EPOLL_CTL_MOD => {
                    before_mod(mods);
                    mods += 1;
                }
                _ => {}
            }
            Answer::Kernels
        },
        || {
            let mut commands: Vec<_> = (1..=count).map(modify).collect();
            assert_eq!(set.ctl_batch(&mut commands), Ok(commands.len()));
        },
    );
    checks
}

#[test]
fn neighbouring_changes_of_kernel_fds_share_a_check() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let set = Epoll::new().unwrap();
    set.add(&reader, input(0)).unwrap();
    for (count, checks) in [(1, 1), (2, 1), (64, 1), (65, 2), (200, 4)] {
        assert_eq!(checks_of_a_batch(&set, &reader, count, |_| {}), checks);
    }
    writer.write_all(b"x").unwrap();
    assert_eq!(wait(&set, LONG), [200]);
}

#[test]
fn a_set_that_is_closed_in_the_midst_of_a_batch_is_made_anew() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (other, _its_writer) = std::io::pipe().unwrap();
    // The first set opens the socket that is a member of all kernel sets.
    let warm_up = Epoll::new().unwrap();
    warm_up.add(&reader, input(0)).unwrap();
    for is_replaced in [false, true] {
        let lost = Epoll::new().unwrap();
        let own = opened_by(|| lost.add(&reader, input(0)).unwrap());
        assert_eq!(own.len(), 1, "its kernel set: {own:?}");
        let mut of_the_program = None;
        checks_of_a_batch(&lost, &reader, 5, |mods| {
            if mods == 2 {
                close_all(&own);
                of_the_program = is_replaced.then(|| {
                    // A kernel set that does not have the fd.
                    let set = other_set(other.as_raw_fd());
                    // SAFETY: the fd is closed.
                    let copied = unsafe { libc::dup3(set, own[0], libc::O_CLOEXEC) };
                    assert_eq!(copied, own[0]);
                    [set, copied]
                });
            }
        });
        writer.write_all(b"x").unwrap();
        assert_eq!(wait(&lost, LONG), [5]);
        (&reader).read_exact(&mut [0]).unwrap();
        if let Some(fds) = of_the_program {
            let mut interest = libc::epoll_event { events: 0, u64: 0 };
            let (op, fd) = (libc::EPOLL_CTL_ADD, reader.as_raw_fd());
            // SAFETY: the interest is live.
            let added = unsafe { libc::epoll_ctl(fds[0], op, fd, &raw mut interest) };
            assert_eq!(added, 0, "nothing was added to it");
            close_all(&fds);
        }
    }
}

#[test]
fn a_member_at_an_fd_that_was_an_own_fd_is_kept_when_its_set_is_made_anew() {
    let _alone = alone();
    let (reader, _writer) = std::io::pipe().unwrap();
    // Sets share the socket by which they are known. The first set with another socket opens two fds.
    let mut others = Vec::new();
    let (lost, own) = loop {
        let set = Epoll::new().unwrap();
        match opened_by(|| set.add(&reader, input(1)).unwrap()) {
            own if own.len() == 2 => break (set, own),
            _ => others.push(set),
        }
        assert!(others.len() <= 8);
    };
    close_all(&own);
    let (source, mut writer) = std::io::pipe().unwrap();
    let member_at = |&fd: &RawFd| {
        // SAFETY: the fd is closed, and the new one has no other owner.
        unsafe {
            let copied = libc::dup3(source.as_raw_fd(), fd, libc::O_CLOEXEC);
            assert_eq!(copied, fd);
            OwnedFd::from_raw_fd(copied)
        }
    };
    let members: Vec<_> = own.iter().map(member_at).collect();
    let anew = opened_by(|| {
        for member in &members {
            lost.add(member, input(2)).unwrap();
        }
    });
    assert!(!anew.is_empty());
    close_all(&anew);
    writer.write_all(b"x").unwrap();
    assert_eq!(wait(&lost, LONG), [2, 2]);
}

/// A set is nested too deep below another one for a kernel fd. Other sets above it go on.
#[test]
fn sets_above_one_that_is_nested_too_deep_elsewhere_go_on_after_a_loss() {
    let _alone = alone();
    let (reader, _writer) = std::io::pipe().unwrap();
    let inner = Epoll::new().unwrap();
    let others = [(); 2].map(|()| Epoll::new().unwrap());
    let chain = [(); 4].map(|()| Epoll::new().unwrap());
    for pair in chain.windows(2) {
        pair[1].add(&pair[0], input(1)).unwrap();
    }
    let _readable = chain[3].readiness_fd().unwrap();
    others[0].add(&inner, input(2)).unwrap();
    chain[0].add(&inner, input(1)).unwrap();
    others[1].add(&inner, input(2)).unwrap();
    assert_eq!(inner.add(&reader, input(3)), Err(Errno::LOOP));
    let counter = EventFd::new(1).unwrap();
    inner.add(&counter, input(4)).unwrap();

    let lost = Epoll::new().unwrap();
    let own = opened_by(|| lost.add(&reader, input(5)).unwrap());
    close_all(&own);
    assert_eq!(wait(&lost, Duration::ZERO), []);
    for set in &others {
        assert_eq!(wait(set, Duration::ZERO), [2]);
    }
}

/// Opens a shared eventfd. Returns the own fds by which it reports changes, too.
fn shared_counter() -> (EventFd, Vec<RawFd>) {
    let mut counter = None;
    let own = opened_by(|| counter = Some(EventFd::shared(0, EventFdFlags::empty()).unwrap()));
    let is_notifier = |fd: &RawFd| {
        let file = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
        file.to_string_lossy().contains("[eventfd]")
    };
    let notifiers: Vec<_> = own.into_iter().filter(is_notifier).collect();
    assert_eq!(notifiers.len(), 2);
    (counter.unwrap(), notifiers)
}

#[test]
fn a_wait_without_a_limit_learns_of_a_shared_counter_whose_notifiers_were_closed() {
    let _alone = alone();
    let (counter, notifiers) = shared_counter();
    let [set, above] = [(); 2].map(|()| Epoll::new().unwrap());
    set.add(&counter, input(1)).unwrap();
    above.add(&set, input(2)).unwrap();
    close_all(&notifiers);
    counter.write(1).unwrap();
    assert_eq!(wait(&above, Duration::ZERO), [2]);
    assert_eq!(wait(&set, Duration::ZERO), [1]);
    assert_eq!(counter.try_read(), Ok(1));
    counter.write(1).unwrap();
    assert_eq!(wait(&set, Duration::ZERO), [1]);
}

#[test]
fn a_shared_counter_with_a_notifier_that_was_closed_comes_and_goes() {
    let _alone = alone();
    for closed in 0..2 {
        let (counter, own) = shared_counter();
        let set = Epoll::new().unwrap();
        set.add(&counter, input(1)).unwrap();
        close_all(&own[closed..=closed]);
        for data in 2..5 {
            set.delete(&counter).unwrap();
            set.add(&counter, input(data)).unwrap();
            counter.write(1).unwrap();
            assert_eq!(wait(&set, LONG), [data]);
            assert_eq!(counter.try_read(), Ok(1));
        }
    }
}

/// Polls sets, by `poll`, `select` and a context, without waiting. Returns how many are ready by each.
fn ready_by_each_poll(sets: &[&Epoll], context: &mut PollContext) -> [usize; 3] {
    let list = || -> Vec<_> {
        let fds = sets.iter().map(|set| PollFd::new(*set, Events::IN));
        fds.collect()
    };
    let numbers = 0..i32::try_from(sets.len()).unwrap();
    let mut read = FdSet::from_iter(numbers.clone());
    let resolve = |fd| Some(sets.get(usize::try_from(fd).ok()?)?.target());
    let limit = &mut Timeout::from(Duration::ZERO);
    [
        poll(&mut list(), Duration::ZERO).unwrap(),
        select(numbers.end, Some(&mut read), None, None, limit, resolve).unwrap(),
        context.poll(&mut list(), Duration::ZERO).unwrap(),
    ]
}

#[test]
fn a_poll_makes_a_set_anew_though_another_one_is_ready() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"x").unwrap();
    let counter = EventFd::new(1).unwrap();
    let ready = Epoll::new().unwrap();
    ready.add(&counter, input(0)).unwrap();
    for which in 0..3 {
        let lost = Epoll::new().unwrap();
        let own = opened_by(|| lost.add(&reader, input(0)).unwrap());
        let context = &mut PollContext::new();
        assert_eq!(ready_by_each_poll(&[&ready, &lost], context), [2; 3]);
        close_all(&own);
        let fds = || [&ready, &lost].map(|set| PollFd::new(set, Events::IN));
        let found = match which {
            0 => poll(&mut fds(), Duration::ZERO),
            1 => {
                let resolve = |fd| Some([&ready, &lost][usize::from(fd == 1)].target());
                let mut read = FdSet::from_iter([0, 1]);
                let limit = &mut Timeout::from(Duration::ZERO);
                select(2, Some(&mut read), None, None, limit, resolve)
            }
            _ => context.poll(&mut fds(), Duration::ZERO),
        };
        assert_eq!(found, Ok(2), "by {which}");
    }
}

/// The set above cannot notice the loss, and checks twice a second.
#[test]
fn polls_alone_find_what_is_ready_in_a_lost_set_below() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    for which in 0..3 {
        let [above, lost] = [(); 2].map(|()| Epoll::new().unwrap());
        let own = opened_by(|| lost.add(&reader, input(0)).unwrap());
        above.add(&lost, input(0)).unwrap();
        let context = &mut PollContext::new();
        assert_eq!(ready_by_each_poll(&[&above], context), [0; 3]);
        close_all(&own);
        writer.write_all(b"x").unwrap();
        let begin = std::time::Instant::now();
        let mut found = || match which {
            0 => poll(&mut [PollFd::new(&above, Events::IN)], Duration::ZERO),
            1 => {
                let (read, limit) = (
                    &mut FdSet::from_iter([0]),
                    &mut Timeout::from(Duration::ZERO),
                );
                select(1, Some(read), None, None, limit, |_| Some(above.target()))
            }
            _ => context.poll(&mut [PollFd::new(&above, Events::IN)], Duration::ZERO),
        };
        while found() != Ok(1) {
            assert!(begin.elapsed() < LONG, "by {which}");
            thread::yield_now();
        }
        (&reader).read_exact(&mut [0]).unwrap();
    }
}

/// Ready in as many looks as it has left.
struct ReadyFor(AtomicUsize);

impl Pollable for ReadyFor {
    fn poll<'q>(&'q self, _: &mut PollTable<'q>) -> Events {
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        match self
            .0
            .fetch_update(success, failure, |left| left.checked_sub(1))
        {
            Ok(_) => Events::IN,
            Err(_) => Events::empty(),
        }
    }
}

/// An event of the first look may be gone in the second look, after the repair.
#[test]
fn a_poll_that_makes_a_set_anew_reports_what_its_last_look_has_found() {
    let _alone = alone();
    let (reader, _writer) = std::io::pipe().unwrap();
    for which in 0..4 {
        let lost = Epoll::new().unwrap();
        let own = opened_by(|| lost.add(&reader, input(0)).unwrap());
        let file = File::new(ReadyFor(AtomicUsize::new(100)));
        let context = &mut PollContext::new();
        let mut fds = [
            PollFd::new(&file, Events::IN),
            PollFd::new(&lost, Events::IN),
        ];
        let mut read = FdSet::from_iter([0, 1]);
        let limit = &mut Timeout::from(Duration::ZERO);
        let resolve = |fd| Some([file.target(), lost.target()][usize::from(fd == 1)]);
        if which >= 2 {
            // Registers the entries.
            assert_eq!(context.poll(&mut fds, Duration::ZERO), Ok(1));
        }
        // Another thread may take an event between two looks.
        file.0.store(1, Ordering::SeqCst);
        close_all(&own);
        let found = match which {
            0 => poll(&mut fds, Duration::ZERO),
            1 => select(2, Some(&mut read), None, None, limit, resolve),
            2 => context.poll(&mut fds, Duration::ZERO),
            _ => context.select(2, Some(&mut read), None, None, limit, resolve),
        };
        let shown = match which {
            0 | 2 => fds.iter().filter(|fd| !fd.revents().is_empty()).count(),
            _ => (0..2).filter(|&fd| read.contains(fd)).count(),
        };
        assert_eq!(found, Ok(shown), "by {which}");
    }
}
