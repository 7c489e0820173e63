//! Wakeups that come during a scan, at points that the test chooses. System calls cannot choose
//! these points, so there is no comparison with the kernel. The rules are those of its
//! `ep_send_events()`, `ep_poll_callback()` and `ep_done_scan()`.
#![cfg(not(upoll_loom))]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use upoll::{Epoll, Event, EventFd, Events, File, PollTable, Pollable, WaitQueue};

const IN: Events = Events::IN;

type Script = Box<dyn FnOnce(&Scripted) + Send>;

/// An object that runs a closure directly after it was polled.
#[derive(Default)]
struct Scripted {
    ready: AtomicU32,
    queue: WaitQueue,
    after_look: Mutex<Option<Script>>,
}

impl Scripted {
    fn after_look(&self, script: impl FnOnce(&Scripted) + Send + 'static) {
        *self.after_look.lock().unwrap() = Some(Box::new(script));
    }

    fn become_ready(&self, events: Events) {
        self.ready.store(events.bits(), Ordering::SeqCst);
        self.queue.wake(events);
    }
}

impl Pollable for Scripted {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        let ready = Events::from_bits_retain(self.ready.load(Ordering::SeqCst));
        let script = self.after_look.lock().unwrap().take();
        if let Some(script) = script {
            script(self);
        }
        ready
    }
}

fn data(set: &Epoll, room: usize) -> Vec<u64> {
    let mut events = vec![Event::default(); room];
    let ready = set.try_wait(&mut events).unwrap();
    events[..ready].iter().map(Event::data).collect()
}

#[test]
fn arrivals_during_a_scan_come_in_their_order_before_what_the_scan_delivered() {
    let set = Epoll::new().unwrap();
    let others: Vec<_> = (0..4).map(|_| EventFd::new(0).unwrap()).collect();
    let scripted = File::new(Scripted::default());
    set.add(&scripted.as_file_ref(), Event::new(IN, 10))
        .unwrap();
    for (n, other) in (0..).zip(&others) {
        set.add(other, Event::new(IN, n)).unwrap();
    }
    scripted.become_ready(IN);
    // Queued behind the object when the scan begins: it keeps its place and is not queued twice.
    others[0].try_write(1).unwrap();
    scripted.after_look(move |_| {
        for other in others.iter().rev() {
            other.try_write(1).unwrap();
        }
        // The counters stay open.
        std::mem::forget(others);
    });
    assert_eq!(data(&set, 1), [10]);
    assert_eq!(data(&set, 8), [0, 3, 2, 1, 10]);
}

#[test]
fn a_file_that_becomes_ready_just_after_a_scan_found_it_idle_is_reported() {
    for mode in [Events::empty(), Events::ET, Events::ONESHOT] {
        let set = Epoll::new().unwrap();
        let scripted = File::new(Scripted::default());
        let interest = Event::new(IN | mode, 7);
        set.add(&scripted.as_file_ref(), interest).unwrap();
        scripted.become_ready(IN);
        scripted.ready.store(0, Ordering::SeqCst);
        scripted.after_look(|this| this.become_ready(IN));
        // The event is reported by the next call at the latest. A level-triggered item may be
        // polled twice, and reported by this one.
        let first = data(&set, 4);
        assert!(first.is_empty() || first == [7] && mode.is_empty());
        assert_eq!(data(&set, 4), [7], "{mode:?}");
    }
}

#[test]
fn an_edge_just_after_a_scan_polled_is_reported_again() {
    let set = Epoll::new().unwrap();
    let scripted = File::new(Scripted::default());
    let interest = Event::new(IN | Events::ET, 7);
    set.add(&scripted.as_file_ref(), interest).unwrap();
    scripted.become_ready(IN);
    scripted.after_look(|this| this.become_ready(IN));
    assert_eq!(data(&set, 4), [7]);
    assert_eq!(data(&set, 4), [7]);
    assert_eq!(data(&set, 4), []);
}

#[test]
fn a_oneshot_interest_fires_once_whatever_comes_while_it_does() {
    let set = Epoll::new().unwrap();
    let scripted = File::new(Scripted::default());
    let interest = Event::new(IN | Events::ONESHOT, 7);
    set.add(&scripted.as_file_ref(), interest).unwrap();
    scripted.become_ready(IN);
    scripted.after_look(|this| this.become_ready(IN));
    assert_eq!(data(&set, 4), [7]);
    assert_eq!(data(&set, 4), []);
    set.modify(&scripted.as_file_ref(), interest).unwrap();
    assert_eq!(data(&set, 4), [7]);
}

#[test]
fn a_file_that_becomes_ready_just_after_add_or_modify_polled_it_is_reported() {
    for add in [true, false] {
        let set = Epoll::new().unwrap();
        let scripted = File::new(Scripted::default());
        let file = scripted.as_file_ref();
        if !add {
            set.add(&file, Event::new(Events::empty(), 0)).unwrap();
        }
        scripted.after_look(|this| this.become_ready(IN));
        let interest = Event::new(IN | Events::ET, 7);
        if add {
            set.add(&file, interest).unwrap();
        } else {
            set.modify(&file, interest).unwrap();
        }
        assert_eq!(data(&set, 4), [7]);
        assert_eq!(data(&set, 4), []);
    }
}

#[test]
fn a_file_that_becomes_ready_just_after_a_poll_from_above_is_reported() {
    let outer = Epoll::new().unwrap();
    let inner = Epoll::new().unwrap();
    let scripted = File::new(Scripted::default());
    inner
        .add(&scripted.as_file_ref(), Event::new(IN, 7))
        .unwrap();
    outer.add(&inner, Event::new(IN, 8)).unwrap();
    scripted.become_ready(IN);
    scripted.ready.store(0, Ordering::SeqCst);
    scripted.after_look(|this| this.become_ready(IN));
    let first = data(&outer, 4);
    assert!(first.is_empty() || first == [8]);
    assert_eq!(data(&outer, 4), [8]);
    assert_eq!(data(&inner, 4), [7]);
}
