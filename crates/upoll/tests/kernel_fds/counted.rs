//! The maximum number of members of a set, while threads add and delete them.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use upoll::{Epoll, Errno, Event, EventFd, Events, Op, Target};

/// A member may be deleted before the ADD of another thread returns.
#[test]
fn a_member_counts_before_anybody_can_delete_it() {
    const ROUNDS: usize = 20_000;
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    set.add(&counter, Event::new(Events::IN, 0)).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let member = Target::Kernel(reader.as_fd());
    let is_over = AtomicBool::new(false);
    let change = |op, fails_with| {
        for _ in 0..ROUNDS {
            let changed = set.ctl(op, member, Event::new(Events::IN, 1));
            assert!(matches!(changed, Ok(()) | Err(Errno::EXIST | Errno::NOENT)));
            assert!(changed.is_ok() || changed == Err(fails_with));
        }
    };
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let most = set.len_at_most();
                // The counter, the pipe, an ADD in progress, and a DEL that has not updated the
                // count yet.
                assert!((1..=4).contains(&most), "{most} members");
            }
        });
        let adding = scope.spawn(|| change(Op::Add, Errno::EXIST));
        let deleting = scope.spawn(|| change(Op::Del, Errno::NOENT));
        adding.join().unwrap();
        deleting.join().unwrap();
        is_over.store(true, Ordering::Relaxed);
        looking.join().unwrap();
    });
}
