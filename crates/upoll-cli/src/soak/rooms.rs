//! Objects with little room, where writers block too: few calls at once, then the next ones when all is quiet.
//!
//! Each step gives some threads a number of bytes to write or to read. Readers ask for at least as many bytes
//! as writers send. So every writer must end, and every byte must reach a reader, by no other wakes than
//! those of these calls. Afterwards the readers that still wait get their bytes. At last one end is closed,
//! and all threads at the other end must return.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fastrand::Rng;
use rustix::thread::gettid;
use upoll::{
    Epoll, Errno, Event, EventFd, EventFdFlags, Events, PIPE_BUF, PipeFlags, PipeReader,
    PipeWriter, PollFd, SocketFlags, Source, StreamSocket, Target, Timeout, pipe2, poll,
    socketpair,
};

use super::asleep::{Eagerness, comes};
use super::disturb::signal;
use super::hang::post;
use super::lockstep::{Barrier, pause};
use super::tally::{Tally, count};
use super::{join_all, lock};

/// Threads that read and write.
const THREADS: usize = 4;

/// The length of a round.
const ROUND: Duration = Duration::from_millis(150);

/// The time that threads have to fall asleep.
const FALL_ASLEEP: Duration = Duration::from_micros(100);

/// Most steps with one object: what happens at a first wait happens once in its life.
const STEPS: usize = 12;

/// Highest count of a counter, exclusive.
const MAXIMUM: u64 = 8;

/// Most bytes that one call transfers.
const MOST: usize = 3 * PIPE_BUF;

#[derive(Clone)]
enum End {
    Reader(PipeReader),
    Writer(PipeWriter),
    Socket(StreamSocket),
    Counter(EventFd),
}

impl Source for End {
    fn target(&self) -> Target<'_> {
        match self {
            End::Reader(reader) => reader.target(),
            End::Writer(writer) => writer.target(),
            End::Socket(socket) => socket.target(),
            End::Counter(counter) => counter.target(),
        }
    }
}

impl End {
    fn read(&self, buffer: &mut [u8], blocks: bool) -> Result<usize, Errno> {
        match (self, blocks) {
            (End::Reader(reader), true) => reader.read(buffer),
            (End::Reader(reader), false) => reader.try_read(buffer),
            (End::Socket(socket), true) => socket.read(buffer),
            (End::Socket(socket), false) => socket.try_read(buffer),
            (End::Counter(counter), true) => counter.read().map(|count| count as usize),
            (End::Counter(counter), false) => counter.try_read().map(|count| count as usize),
            (End::Writer(_), _) => Err(Errno::BADF),
        }
    }

    fn write(&self, bytes: &[u8], blocks: bool) -> Result<usize, Errno> {
        let length = bytes.len();
        match (self, blocks) {
            (End::Writer(writer), true) => writer.write(bytes),
            (End::Writer(writer), false) => writer.try_write(bytes),
            (End::Socket(socket), true) => socket.write(bytes),
            (End::Socket(socket), false) => socket.try_write(bytes),
            (End::Counter(counter), true) => counter.write(length as u64).map(|()| length),
            (End::Counter(counter), false) => counter.try_write(length as u64).map(|()| length),
            (End::Reader(_), _) => Err(Errno::BADF),
        }
    }
}

/// An object, and how much is written to it at once.
struct Room {
    reading: Option<End>,
    writing: Option<End>,
    /// The bytes of which all writes and reads are multiples.
    unit: usize,
    /// Most units in one call.
    most: usize,
    /// True if each unit comes out in one piece.
    is_whole: bool,
}

impl Room {
    fn new(rng: &mut Rng) -> Result<Self> {
        let ends = |reading, writing| (Some(reading), Some(writing));
        Ok(match rng.usize(..5) {
            0 | 1 => {
                let (reader, writer) = pipe2(PipeFlags::empty())?;
                writer.set_capacity(PIPE_BUF * rng.usize(1..=2))?;
                // Units that divide a page may follow one another in it; the others each need a page.
                let (unit, most) = [(1, 8), (512, 24), (PIPE_BUF, 3), (3000, 1)][rng.usize(..4)];
                let (reading, writing) = ends(End::Reader(reader), End::Writer(writer));
                Room {
                    reading,
                    writing,
                    unit,
                    most,
                    is_whole: true,
                }
            }
            2 => {
                let (reader, writer) = socketpair(SocketFlags::empty())?;
                writer.set_send_buffer(0);
                let (reading, writing) = ends(End::Socket(reader), End::Socket(writer));
                Room {
                    reading,
                    writing,
                    unit: [1, 1000, PIPE_BUF][rng.usize(..3)],
                    most: 3,
                    is_whole: false,
                }
            }
            _ => {
                let flags = [EventFdFlags::empty(), EventFdFlags::SEMAPHORE][rng.usize(..2)];
                let counter = EventFd::with_flags(0, flags)?;
                counter.set_maximum(MAXIMUM)?;
                let (reading, writing) = ends(End::Counter(counter.clone()), End::Counter(counter));
                Room {
                    reading,
                    writing,
                    unit: 1,
                    most: MAXIMUM as usize - 2,
                    is_whole: false,
                }
            }
        })
    }

    fn is_counter(&self) -> bool {
        matches!(self.reading, Some(End::Counter(_)))
    }
}

/// A way in which a thread waits for bytes or room.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Block,
    Poll,
    Level,
    Edge,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Rest,
    Read,
    Write,
}

/// A thread's part of a step.
#[derive(Clone, Copy, Debug)]
struct Task {
    act: Act,
    way: Way,
    /// The number of bytes in all; None until the other end is closed.
    bytes: Option<usize>,
    /// The number of bytes in one call.
    at_once: usize,
    /// True if it begins when the others have had the time to fall asleep.
    is_late: bool,
}

const REST: Task = Task {
    act: Act::Rest,
    way: Way::Block,
    bytes: Some(0),
    at_once: 0,
    is_late: false,
};

/// The state that the threads of a round share.
struct Shared {
    barrier: Barrier,
    is_over: AtomicBool,
    /// True if late tasks may begin.
    is_late: AtomicBool,
    room: Mutex<Room>,
    tasks: Mutex<[Task; THREADS]>,
    threads: [AtomicI32; THREADS],
    /// True for each thread that is not through with its task.
    runs: [AtomicBool; THREADS],
    /// The number of these that write.
    writing: AtomicUsize,
    sent: AtomicU64,
    received: AtomicU64,
}

/// Waits until `end` is ready for `events`.
fn wait(way: Way, set: &Epoll, end: &End, events: Events) -> Result<(), Errno> {
    match way {
        Way::Block => Ok(()),
        Way::Poll => poll(&mut [PollFd::new(end, events)], Timeout::NEVER).map(drop),
        Way::Level | Way::Edge => set
            .wait(&mut [Event::default(); 2], Timeout::NEVER)
            .map(drop),
    }
}

impl Shared {
    /// Runs one thread's tasks.
    fn run(&self, index: usize, rng: &mut Rng) -> Result<()> {
        self.threads[index].store(gettid().as_raw_pid(), Ordering::SeqCst);
        let set = Epoll::new()?;
        loop {
            self.barrier.meet();
            if self.is_over.load(Ordering::SeqCst) {
                return Ok(());
            }
            let task = lock(&self.tasks)[index];
            let (end, unit, is_whole) = {
                let room = lock(&self.room);
                let end = match task.act {
                    Act::Rest => None,
                    Act::Read => room.reading.clone(),
                    Act::Write => room.writing.clone(),
                };
                (end, room.unit, room.is_whole)
            };
            self.barrier.meet();
            while task.is_late && !self.is_late.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            pause(rng);
            if let Some(end) = end {
                self.work(index, task, &set, &end, unit, is_whole)?;
            }
            if matches!(task.act, Act::Write) {
                self.writing.fetch_sub(1, Ordering::SeqCst);
            }
            self.runs[index].store(false, Ordering::SeqCst);
        }
    }

    /// Does a task, up to its end or a signal.
    fn work(
        &self,
        index: usize,
        task: Task,
        set: &Epoll,
        end: &End,
        unit: usize,
        is_whole: bool,
    ) -> Result<()> {
        let events = match task.act {
            Act::Read => Events::IN,
            _ => Events::OUT,
        };
        let interest = match task.way {
            Way::Level => Some(events),
            Way::Edge => Some(events | Events::ET),
            _ => None,
        };
        if let Some(interest) = interest {
            set.add(end, Event::new(interest, 1))?;
        }
        let blocks = task.way == Way::Block;
        let mut buffer = [index as u8; MOST];
        let mut left = task.bytes.unwrap_or(usize::MAX);
        let ended = loop {
            if left == 0 {
                break None;
            }
            let part = &mut buffer[..left.min(task.at_once)];
            let done = match task.act {
                Act::Read => end.read(part, blocks),
                _ => end.write(part, blocks),
            };
            match done {
                Ok(0) => break None,
                Ok(bytes) => {
                    left = left.saturating_sub(bytes);
                    if events == Events::OUT {
                        self.sent.fetch_add(bytes as u64, Ordering::SeqCst);
                        continue;
                    }
                    if is_whole {
                        let mut units = part[..bytes].chunks(unit);
                        ensure!(
                            units.all(|one| one.len() == unit && one.iter().all(|b| *b == one[0])),
                            "a read of {bytes} bytes does not return units of {unit} bytes"
                        );
                    }
                    self.received.fetch_add(bytes as u64, Ordering::SeqCst);
                }
                Err(Errno::AGAIN) if !blocks => match wait(task.way, set, end, events) {
                    Ok(()) => {}
                    Err(error) => break Some(error),
                },
                Err(error) => break Some(error),
            }
        };
        if interest.is_some() {
            set.delete(end)?;
        }
        let closed = [Errno::PIPE, Errno::CONNRESET];
        ensure!(
            match ended {
                None => left == 0 || task.bytes.is_none(),
                Some(Errno::INTR) => true,
                Some(error) => task.bytes.is_none() && closed.contains(&error),
            },
            "{task:?} ends with {ended:?}, {left} bytes are left"
        );
        Ok(())
    }

    /// The ids of the threads that are not through with their tasks. The others spin.
    fn running(&self) -> Vec<i32> {
        let threads = self.threads.iter().zip(&self.runs);
        threads
            .filter(|(_, runs)| runs.load(Ordering::SeqCst))
            .map(|(thread, _)| thread.load(Ordering::SeqCst))
            .collect()
    }

    fn is_done(&self) -> bool {
        !self.runs.iter().any(|runs| runs.load(Ordering::SeqCst))
    }

    fn is_all_received(&self) -> bool {
        // First the writers: they count before they leave.
        self.writing.load(Ordering::SeqCst) == 0
            && self.sent.load(Ordering::SeqCst) == self.received.load(Ordering::SeqCst)
    }

    /// Starts the threads on `tasks`. Sometimes lets them fall asleep, before late ones begin.
    fn begin(&self, tasks: [Task; THREADS], rng: &mut Rng) {
        self.is_late.store(false, Ordering::SeqCst);
        let writers = tasks.iter().filter(|task| matches!(task.act, Act::Write));
        self.writing.store(writers.count(), Ordering::SeqCst);
        for runs in &self.runs {
            runs.store(true, Ordering::SeqCst);
        }
        *lock(&self.tasks) = tasks;
        self.barrier.meet();
        self.barrier.meet();
        if rng.bool() {
            thread::sleep(FALL_ASLEEP);
        }
        self.is_late.store(true, Ordering::SeqCst);
    }

    fn until(&self, what: &str, condition: impl Fn() -> bool) -> Result<()> {
        ensure!(
            comes(Eagerness::Spinning, condition, || self.running()),
            "{what}: threads {:?}, {} write; {} bytes sent, {} received; {:?}",
            self.running(),
            self.writing.load(Ordering::SeqCst),
            self.sent.load(Ordering::SeqCst),
            self.received.load(Ordering::SeqCst),
            lock(&self.tasks),
        );
        Ok(())
    }

    /// Makes one step, in which all that is written is read.
    fn transfer(&self, rng: &mut Rng, tally: &Tally) -> Result<()> {
        let (unit, most, writing, reading) = {
            let room = lock(&self.room);
            (
                room.unit,
                room.most,
                room.writing.clone(),
                room.reading.clone(),
            )
        };
        let (Some(writing), Some(reading)) = (writing, reading) else {
            return Ok(());
        };
        let signalled = (rng.usize(..3) == 0).then(|| rng.usize(..THREADS));
        let mut tasks = [REST; THREADS];
        // The bytes that readers ask for and writers may send. A reader that gets a signal may leave all of its own.
        let (mut asked, ways) = (0, [Way::Block, Way::Poll, Way::Level, Way::Edge]);
        let way = |rng: &mut Rng| [Way::Block, ways[rng.usize(..4)]][rng.usize(..2)];
        let readers = rng.usize(1..THREADS);
        let late = rng.usize(..3);
        let total = |rng: &mut Rng| {
            let most_calls = [1, 3][rng.usize(..2)];
            let calls = rng.usize(1..=most_calls);
            unit * calls * rng.usize(1..=most)
        };
        for (index, task) in tasks[..readers].iter_mut().enumerate() {
            let bytes = total(rng);
            *task = Task {
                act: Act::Read,
                way: way(rng),
                bytes: Some(bytes),
                at_once: unit * rng.usize(1..=most),
                is_late: late == 1,
            };
            asked += if signalled == Some(index) { 0 } else { bytes };
        }
        for task in &mut tasks[readers..] {
            let bytes = total(rng).min(asked);
            asked -= bytes;
            let way = way(rng);
            // A counter is ready for writing if 1 fits.
            let at_once = if lock(&self.room).is_counter() && way != Way::Block {
                1
            } else {
                unit * rng.usize(1..=most)
            };
            if bytes > 0 {
                *task = Task {
                    act: Act::Write,
                    way,
                    bytes: Some(bytes),
                    at_once,
                    is_late: late == 2,
                };
            }
        }
        self.begin(tasks, rng);
        if let Some(index) = signalled {
            pause(rng);
            count(&tally.signals);
            let thread = self.threads[index].load(Ordering::SeqCst);
            // The thread runs until this one ends the round.
            signal(thread);
        }
        self.until("bytes or room are left, and all threads sleep", || {
            self.is_all_received()
        })?;
        let one = vec![0; unit];
        self.until("readers that are left are not woken", || {
            if !self.is_done() && self.is_all_received() {
                let sent = writing.write(&one, false).unwrap_or(0);
                self.sent.fetch_add(sent as u64, Ordering::SeqCst);
            }
            self.is_done()
        })?;
        let mut rest = [0; MOST];
        while reading.read(&mut rest, false).is_ok_and(|bytes| bytes > 0) {}
        let sent = self.sent.swap(0, Ordering::SeqCst);
        self.received.store(0, Ordering::SeqCst);
        tally.units.fetch_add(sent / unit as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Closes one end while threads wait at the other one.
    fn close(&self, rng: &mut Rng, tally: &Tally) -> Result<()> {
        let (unit, most, closes_reading) = {
            let room = lock(&self.room);
            (room.unit, room.most, rng.bool())
        };
        let mut tasks = [REST; THREADS];
        for task in &mut tasks[..rng.usize(1..=THREADS)] {
            *task = Task {
                act: if closes_reading {
                    Act::Write
                } else {
                    Act::Read
                },
                way: [Way::Block, Way::Poll, Way::Level, Way::Edge][rng.usize(..4)],
                bytes: None,
                at_once: unit * most,
                is_late: false,
            };
        }
        self.begin(tasks, rng);
        count(&tally.closes);
        pause(rng);
        let end = {
            let mut room = lock(&self.room);
            match closes_reading {
                true => room.reading.take(),
                false => room.writing.take(),
            }
        };
        drop(end);
        self.until(
            "an end is closed, and threads sleep at the other one",
            || self.is_done(),
        )?;
        self.sent.store(0, Ordering::SeqCst);
        self.received.store(0, Ordering::SeqCst);
        Ok(())
    }

    fn lead(&self, rng: &mut Rng, tally: &Tally) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < ROUND {
            for _ in 0..rng.usize(..STEPS) {
                count(&tally.steps);
                self.transfer(rng, tally)?;
            }
            if !lock(&self.room).is_counter() {
                self.close(rng, tally)?;
            }
            *lock(&self.room) = Room::new(rng)?;
        }
        self.is_over.store(true, Ordering::SeqCst);
        self.barrier.meet();
        Ok(())
    }
}

/// Makes steps with one small object after the other.
pub(super) fn round(rng: &mut Rng, tally: &Tally, fault: &(impl Fn(&str) + Sync)) -> Result<()> {
    let shared = Shared {
        barrier: Barrier::new(THREADS + 1),
        is_over: AtomicBool::new(false),
        is_late: AtomicBool::new(false),
        room: Mutex::new(Room::new(rng)?),
        tasks: Mutex::new([REST; THREADS]),
        threads: Default::default(),
        runs: Default::default(),
        writing: AtomicUsize::new(0),
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
    };
    thread::scope(|scope| {
        let shared = &shared;
        let mut threads = Vec::new();
        for index in 0..THREADS {
            let mut rng = rng.fork();
            threads.push(scope.spawn(move || {
                let _post = post("reads or writes where there is little room");
                if let Err(error) = shared.run(index, &mut rng) {
                    fault(&format!("{error:#}"));
                }
            }));
        }
        if let Err(error) = shared.lead(rng, tally) {
            fault(&format!("{error:#}"));
        }
        join_all(threads, fault);
    });
    Ok(())
}
