//! Counts and maxima, and blocking calls.

use std::fs;
use std::sync::atomic::Ordering;

use upoll::{Epoll, Errno, Event, EventFd, EventFdFlags, Events, Watch};

use crate::processes::{Child, about_to_sleep, await_go, say, shared_numbers, tests};
use crate::worlds::both;

tests![
    what_one_process_writes_another_reads,
    a_semaphore_gives_each_process_one,
    a_reader_is_woken_by_another_process,
    a_writer_waits_until_another_process_has_read,
    a_writer_waits_for_room_below_the_maximum_of_another_process,
    a_raised_maximum_wakes_the_writers_of_other_processes,
    a_signal_handler_ends_a_wait_or_restarts_it,
    many_processes_lose_nothing,
    grandchildren_have_it_too,
    a_child_that_drops_its_handle_takes_nothing_away,
    a_watch_in_a_child_learns_of_the_childs_changes,
    nothing_is_left_open_or_mapped,
];

const NONE: EventFdFlags = EventFdFlags::empty();

fn what_one_process_writes_another_reads() {
    let seen = both(|world| {
        let counter = world.counter(0, EventFdFlags::NONBLOCK);
        let mut child = Child::new(|line| {
            await_go(line);
            say(line, &format!("{:?}", counter.read()));
            counter.write(5).unwrap();
            counter.write(0).unwrap();
            say(line, &format!("{:?}", counter.write(u64::MAX)));
        });
        counter.write(3).unwrap();
        child.go();
        let heard = [child.hear(), child.hear()];
        assert_eq!(child.join(), Ok(0));
        (heard, counter.read(), counter.read())
    });
    assert_eq!(seen.0, ["Ok(3)", "Err(EINVAL)"]);
    assert_eq!((seen.1, seen.2), (Ok(5), Err(Errno::AGAIN)));
}

fn a_semaphore_gives_each_process_one() {
    let heard = both(|world| {
        let counter = world.counter(3, EventFdFlags::NONBLOCK | EventFdFlags::SEMAPHORE);
        let readers = (0..4).map(|_| {
            let mut child = Child::new(|line| say(line, &format!("{:?}", counter.read())));
            let heard = child.hear();
            assert_eq!(child.join(), Ok(0));
            heard
        });
        readers.collect::<Vec<_>>()
    });
    assert_eq!(heard, ["Ok(1)", "Ok(1)", "Ok(1)", "Err(EAGAIN)"]);
}

fn a_reader_is_woken_by_another_process() {
    let seen = both(|world| {
        let counter = world.counter(0, NONE);
        let mut child = Child::new(|line| {
            about_to_sleep(line);
            assert_eq!(counter.read(), Ok(4));
        });
        child.until_asleep();
        // A write of zero wakes readers, but there is nothing to read.
        counter.write(0).unwrap();
        child.until_state_is_sleep();
        counter.write(4).unwrap();
        child.join()
    });
    assert_eq!(seen, Ok(0));
}

fn a_writer_waits_until_another_process_has_read() {
    for child_writes in [true, false] {
        let seen = both(|world| {
            let counter = world.counter(0, NONE);
            counter.write(u64::MAX - 1).unwrap();
            if child_writes {
                let mut child = Child::new(|line| {
                    about_to_sleep(line);
                    counter.write(7).unwrap();
                });
                child.until_asleep();
                assert_eq!(counter.read(), Ok(u64::MAX - 1));
                assert_eq!(child.join(), Ok(0));
            } else {
                let parent = std::process::id();
                let child = Child::new(|_| {
                    loop {
                        let stat = fs::read_to_string(format!("/proc/{parent}/stat")).unwrap();
                        if stat.rsplit(") ").next().unwrap().starts_with('S') {
                            break;
                        }
                    }
                    assert_eq!(counter.read(), Ok(u64::MAX - 1));
                });
                counter.write(7).unwrap();
                assert_eq!(child.join(), Ok(0));
            }
            counter.read()
        });
        assert_eq!(seen, Ok(7));
    }
}

fn a_writer_waits_for_room_below_the_maximum_of_another_process() {
    let counter = EventFd::shared(0, NONE).unwrap();
    counter.set_maximum(5).unwrap();
    let mut child = Child::new(|line| {
        assert_eq!(counter.maximum(), 5);
        assert_eq!(counter.try_write(5), Err(Errno::AGAIN));
        counter.try_write(4).unwrap();
        about_to_sleep(line);
        counter.write(3).unwrap();
        assert_eq!(counter.set_maximum(3), Err(Errno::INVAL));
        counter.set_maximum(4).unwrap();
    });
    child.until_asleep();
    assert_eq!(counter.read(), Ok(4));
    assert_eq!(child.join(), Ok(0));
    assert_eq!(counter.maximum(), 4);
    assert_eq!(counter.try_write(1), Err(Errno::AGAIN));
    assert_eq!(counter.try_read(), Ok(3));
}

fn a_raised_maximum_wakes_the_writers_of_other_processes() {
    let counter = EventFd::shared(0, NONE).unwrap();
    counter.set_maximum(2).unwrap();
    counter.try_write(1).unwrap();
    let mut children: Vec<_> = (0..3)
        .map(|_| {
            Child::new(|line| {
                about_to_sleep(line);
                counter.write(2).unwrap();
            })
        })
        .collect();
    children.iter_mut().for_each(Child::until_asleep);
    counter.set_maximum(8).unwrap();
    for child in children {
        assert_eq!(child.join(), Ok(0));
    }
    assert_eq!(counter.try_read(), Ok(7));
}

extern "C" fn ignore(_: i32) {}

fn a_signal_handler_ends_a_wait_or_restarts_it() {
    for restarts in [false, true] {
        let ended = both(|world| {
            let counter = world.counter(0, NONE);
            let mut child = Child::new(|line| {
                // SAFETY: the handler does nothing; the structure is live.
                unsafe {
                    let mut action = std::mem::zeroed::<libc::sigaction>();
                    action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
                    action.sa_flags = if restarts { libc::SA_RESTART } else { 0 };
                    libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
                }
                about_to_sleep(line);
                say(line, &format!("{:?}", counter.read()));
            });
            child.until_asleep();
            child.signal(libc::SIGUSR1);
            if restarts {
                std::thread::sleep(std::time::Duration::from_millis(30));
                child.until_state_is_sleep();
                counter.write(2).unwrap();
            }
            let ended = child.hear();
            assert_eq!(child.join(), Ok(0));
            ended
        });
        assert_eq!(ended, if restarts { "Ok(2)" } else { "Err(EINTR)" });
    }
}

fn many_processes_lose_nothing() {
    const EACH: u64 = 3_000;
    const WRITERS: u64 = 4;
    for flags in [NONE, EventFdFlags::SEMAPHORE] {
        let counter = EventFd::shared(0, flags).unwrap();
        counter.set_maximum(10).unwrap();
        let taken = &shared_numbers(1)[0];
        let mut children: Vec<_> = (0..WRITERS)
            .map(|_| {
                Child::new(|_| {
                    for round in 0..EACH {
                        counter.write(1).unwrap();
                        if round % 64 == 0 {
                            let _ =
                                counter.set_maximum([10, u64::MAX, 3, 50][round as usize / 64 % 4]);
                        }
                    }
                    while counter.set_maximum(10).is_err() {
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        children.extend((0..2).map(|_| {
            Child::new(|_| {
                while taken.load(Ordering::SeqCst) < EACH * WRITERS {
                    match counter.poll_read() {
                        Some(count) => taken.fetch_add(count, Ordering::SeqCst),
                        None => continue,
                    };
                }
            })
        }));
        for child in children {
            assert_eq!(child.join(), Ok(0));
        }
        assert_eq!(taken.load(Ordering::SeqCst), EACH * WRITERS);
        assert_eq!(counter.try_read(), Err(Errno::AGAIN));
    }
}

/// Reads, and gives up after a time limit.
trait PollRead {
    fn poll_read(&self) -> Option<u64>;
}

impl PollRead for EventFd {
    fn poll_read(&self) -> Option<u64> {
        let mut fds = [upoll::PollFd::new(self, Events::IN)];
        upoll::poll(&mut fds, std::time::Duration::from_millis(100)).unwrap();
        self.try_read().ok()
    }
}

fn grandchildren_have_it_too() {
    let seen = both(|world| {
        let counter = world.counter(0, NONE);
        let child = Child::new(|_| {
            let grandchild = Child::new(|_| counter.write(1).unwrap());
            assert_eq!(grandchild.join(), Ok(0));
            counter.write(1).unwrap();
        });
        assert_eq!(child.join(), Ok(0));
        counter.read()
    });
    assert_eq!(seen, Ok(2));
}

fn a_child_that_drops_its_handle_takes_nothing_away() {
    let seen = both(|world| {
        let counter = world.counter(0, NONE);
        let set = world.set();
        set.add(&counter, Events::IN);
        let mut kept = Some(counter);
        let child = Child::new(|_| drop(kept.take()));
        assert_eq!(child.join(), Ok(0));
        let counter = kept.unwrap();
        let child = Child::new(|_| counter.write(3).unwrap());
        assert_eq!(child.join(), Ok(0));
        (set.wait(0), counter.read(), set.wait(0))
    });
    assert_eq!(seen, (Ok(vec![Events::IN.bits()]), Ok(3), Ok(Vec::new())));
}

fn a_watch_in_a_child_learns_of_the_childs_changes() {
    let counter = EventFd::shared(0, NONE).unwrap();
    let heard = &shared_numbers(1)[0];
    let watch = |who| {
        Watch::new(&counter, Events::IN, move |_| {
            heard.fetch_add(who, Ordering::SeqCst);
        })
        .unwrap()
    };
    let _parents = watch(1);
    let child = Child::new(|_| {
        counter.try_write(1).unwrap();
        let _childs = watch(100);
        counter.try_write(1).unwrap();
        counter.try_write(1).unwrap();
    });
    assert_eq!(child.join(), Ok(0));
    assert_eq!(heard.load(Ordering::SeqCst), 200);
    counter.try_write(1).unwrap();
    assert_eq!(heard.load(Ordering::SeqCst), 201);
}

fn nothing_is_left_open_or_mapped() {
    let used = || {
        let open = fs::read_dir("/proc/self/fd").unwrap().count();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let shared = maps.lines().filter(|line| line.contains("rw-s")).count();
        (open, shared)
    };
    let round = || {
        let counter = EventFd::shared(0, NONE).unwrap();
        let twin = counter.clone();
        let set = Epoll::new().unwrap();
        let interest = Event::new(Events::IN, 0);
        set.add(&counter, interest).unwrap();
        let child = Child::new(|_| twin.try_write(1).unwrap());
        assert_eq!(child.join(), Ok(0));
        assert_eq!(set.try_wait(&mut [interest]), Ok(1));
        counter.try_read().unwrap();
        let mut fds = [upoll::PollFd::new(&counter, Events::IN)];
        let limit = std::time::Duration::from_millis(1);
        assert_eq!(upoll::poll(&mut fds, limit), Ok(0));
        let during = used();
        drop((counter, set));
        twin.try_write(1).unwrap();
        during
    };
    // The thread's wake fd stays open.
    round();
    let before = used();
    let during = round();
    assert!(during.0 > before.0 && during.1 == before.1 + 1);
    for _ in 0..100 {
        round();
    }
    assert_eq!(used(), before);
}
