//! Events for the crate `tracing`.
#![cfg(all(feature = "std", feature = "tracing"))]
#![cfg(not(upoll_loom))]

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};
use upoll::{CtlCommand, Epoll, Errno, Event, EventFd, Events};

/// Keeps the events of the library as text, and uses a set while it does so.
#[derive(Clone, Default)]
struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    /// A set that the events may be about.
    used: Arc<Mutex<Option<Epoll>>>,
}

/// One event. Identities are left out: they differ from run to run.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let is_identity = ["set", "file"].contains(&field.name());
        match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name if is_identity => write!(self.0, " {name}"),
            name => write!(self.0, " {name}={value:?}"),
        }
        .unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("upoll")
    }

    fn event(&self, event: &tracing::Event<'_>) {
        if let Some(set) = &*self.used.lock().unwrap() {
            // Would wait for ever if the library held the set's lock.
            assert!(set.len() < 5);
            let _ = set.as_file_ref().ready();
        }
        let mut line = Line(String::new());
        if *event.metadata().level() == Level::TRACE {
            line.0.push_str("trace:");
        }
        event.record(&mut line);
        self.lines.lock().unwrap().push(line.0.trim().to_owned());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }
}

fn logged(test: impl FnOnce(&Log)) {
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || test(&log));
}

#[test]
fn changes_of_a_set_are_events_and_name_their_errors() {
    logged(|log| {
        let set = Epoll::new().unwrap();
        let counter = EventFd::new(0).unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(log.take(), ["set created set rotates=false"]);
        *log.used.lock().unwrap() = Some(set.clone());
        let level = Event::new(Events::IN, 3);
        set.add(&counter, level).unwrap();
        assert_eq!(set.add(&counter, level), Err(Errno::EXIST));
        set.delete(&counter).unwrap();
        set.add(&reader, level).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
        assert_eq!(
            log.take(),
            [
                "set changed set op=Add file fd=0 events=Events(IN)",
                "set changed set op=Add file fd=0 events=Events(IN) error=File exists (EEXIST)",
                "set changed set op=Del file fd=0 events=Events(0x0)",
                &format!("set changed set op=Add fd={fd} events=Events(IN)"),
            ]
        );
        drop(counter);
        assert_eq!(log.take(), ["file closed file"]);
    });
}

#[test]
fn each_command_of_a_batch_that_was_executed_is_one_event() {
    logged(|log| {
        let set = Epoll::new().unwrap();
        let (one, other) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
        let (reader, _writer) = std::io::pipe().unwrap();
        let level = Event::new(Events::IN, 0);
        let mut commands = [
            CtlCommand::add(&one, level),
            CtlCommand::add(&reader, level),
            CtlCommand::modify(&reader, level),
            CtlCommand::delete(&other),
            CtlCommand::add(&other, level),
        ];
        *log.used.lock().unwrap() = Some(set.clone());
        log.take();
        assert_eq!(set.ctl_batch(&mut commands), Ok(3));
        let lines = log.take();
        let ops = lines.iter().map(|line| line.split(' ').nth(3).unwrap());
        let ops: Vec<_> = ops.collect();
        assert_eq!(ops, ["op=Add", "op=Add", "op=Mod", "op=Del"]);
        assert!(lines[3].ends_with("error=No such file or directory (ENOENT)"));
    });
}

#[test]
fn waits_are_events_and_say_whether_the_thread_slept() {
    logged(|log| {
        let set = Epoll::new().unwrap();
        let counter = EventFd::new(1).unwrap();
        set.add(&counter, Event::new(Events::IN, 0)).unwrap();
        *log.used.lock().unwrap() = Some(set.clone());
        log.take();
        let events = &mut [Event::default(); 2];
        let limit = Duration::from_micros(1);
        assert_eq!(set.wait(events, limit), Ok(1));
        assert_eq!(set.try_wait(events), Ok(1));
        counter.try_read().unwrap();
        assert_eq!(set.wait(events, limit), Ok(0));
        assert_eq!(set.pwait(events, limit, &upoll::SigSet::full()), Ok(0));
        let (found, nothing) = (
            "trace: wait ended set ready=1",
            "trace: wait ended set ready=0",
        );
        let sleeps = "trace: thread sleeps set";
        assert_eq!(log.take(), [found, found, sleeps, nothing, sleeps, nothing]);
    });
}
